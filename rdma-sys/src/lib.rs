//! Raw bindings to libibverbs and librdmacm, with their inline functions, and no need of either to build or to start.
//!
//! - Types and constants are bindgen's, made from the newest headers that Debian has and committed: building needs
//!   neither headers nor libclang. A C enum is a newtype with constants, because a provider may answer a value that we
//!   do not know; unnamed enums are plain integers.
//! - The `static inline` functions of `verbs.h`, `rdma_cma.h` and `rdma_verbs.h` ([`inline`]) are here in Rust, under
//!   their names: `ibv_post_send`, `ibv_poll_cq`, the `ibv_wr_*` and `ibv_wc_read_*` families, `rdma_post_send` ... They
//!   call what the objects themselves point to, so they work with objects of every implementation.
//! - The functions that the libraries export stand in tables, [`Ibverbs`] and [`RdmaCm`]. The system's are loaded when
//!   first asked for; an implementation in Rust fills a table of its own. Functions that the headers make of both, such
//!   as `ibv_reg_mr`, `ibv_query_port` and `rdma_get_send_comp`, are methods of the table.
//!
//! ```no_run
//! use rdma_sys::Ibverbs;
//!
//! let verbs = Ibverbs::system()?;
//! let mut number = 0;
//! // SAFETY: there is room for the number.
//! let list = unsafe { verbs.ibv_get_device_list(&raw mut number) };
//! println!("{number} devices");
//! if !list.is_null() {
//!     // SAFETY: the list is the one from above, and no device of it is used any more.
//!     unsafe { (verbs.ibv_free_device_list)(list) };
//! }
//! # Ok::<(), rdma_sys::LoadError>(())
//! ```
//!
//! # Where the libraries come from
//!
//! | | a library is missing | a function is missing |
//! |---|---|---|
//! | default | [`LoadError`] says what was tried and why it failed | it fails with `EOPNOTSUPP` |
//! | feature `linked` | the program does not start | as above if newer than rdma-core 44, else it does not start |
//!
//! By default, `RDMA_IBVERBS_PATH` and `RDMA_RDMACM_PATH` set the files to load; otherwise the dynamic loader searches
//! `libibverbs.so.1` and `librdmacm.so.1`. A library is never unloaded: its threads and providers may run at any time.
//!
//! Feature `linked` binds the libraries at link time instead, for distributions. It wins where one dependent asks for
//! it and another does not.
//!
//! # Other targets, other headers
//!
//! The committed bindings are for x86_64 and aarch64 Linux with glibc, where all layouts are the same. Feature `bindgen`
//! makes them from the system's headers instead (or from those in `RDMA_CORE_INCLUDE`) while the crate is built, which
//! needs libclang and headers of rdma-core 44 or newer. What the headers lack is then missing here, too.
//!
//! # What is checked
//!
//! `tests/abi` compares every size, offset and constant with the headers, `tests/twins` every inline function with the
//! same function in C, and the compiler every entry of the tables with the headers' declarations.

#[cfg(not(any(
    feature = "bindgen",
    all(
        target_os = "linux",
        target_env = "gnu",
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )
)))]
compile_error!(
    "rdma-sys has bindings for x86_64 and aarch64 Linux with glibc only; feature `bindgen` makes them from this \
     system's headers of rdma-core"
);

#[macro_use]
mod table;

#[cfg(not(feature = "bindgen"))]
#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    unused_qualifications,
    unpredictable_function_pointer_comparisons,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated"
)]
mod bindings;

/// Made by the build script.
#[cfg(feature = "bindgen")]
#[allow(warnings, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction, reason = "generated")]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

#[cfg(not(feature = "bindgen"))]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "generated")]
mod functions;

/// Made by the build script.
#[cfg(feature = "bindgen")]
#[allow(warnings, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction, reason = "generated")]
mod functions {
    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
}

mod ibverbs;
pub mod inline;
mod load;
#[allow(missing_docs, non_camel_case_types, reason = "C's names")]
mod macros;
mod rdmacm;

pub use self::{
    bindings::*,
    ibverbs::Ibverbs,
    inline::*,
    load::{Attempt, LoadError},
    macros::*,
    rdmacm::RdmaCm,
};

#[cfg(feature = "linked")]
#[link(name = "ibverbs")]
unsafe extern "C" {}

#[cfg(feature = "linked")]
#[link(name = "rdmacm")]
unsafe extern "C" {}
