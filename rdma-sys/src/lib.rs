//! Raw bindings to libibverbs and librdmacm, with their inline functions. Neither library is needed
//! to build a program or to start it.
//!
//! - Types and constants are bindgen's, made from the newest headers that Debian has, and
//!   committed: building needs neither headers nor libclang. A C enum is a newtype with constants,
//!   because a provider may return an unknown value; unnamed enums are plain integers.
//! - The `static inline` functions of `verbs.h`, `rdma_cma.h` and `rdma_verbs.h` ([`inline`]) are
//!   written in Rust under their names: `ibv_post_send`, `ibv_poll_cq`, the `ibv_wr_*` and
//!   `ibv_wc_read_*` families, `rdma_post_send` ... They call the pointers in the objects
//!   themselves, so they work with objects of every implementation.
//! - The functions that the libraries export are the fields of two tables, [`Ibverbs`] and
//!   [`RdmaCm`]. The system's libraries are loaded at the first use; an implementation in Rust
//!   fills a table of its own. Inline functions that call an exported symbol, such as `ibv_reg_mr`,
//!   `ibv_query_port` and `rdma_get_send_comp`, are methods of the table.
//! - [`QpTransition`] is the table of the attributes that `ibv_modify_qp` requires and allows.
//!
//! # Examples
//!
//! ```no_run
//! use rdma_sys::Ibverbs;
//!
//! let verbs = Ibverbs::system()?;
//! let mut number = 0;
//! // SAFETY: the function requires space for a number, which is a local.
//! let list = unsafe { (verbs.ibv_get_device_list)(&raw mut number) };
//! println!("{number} devices");
//! if !list.is_null() {
//!     // SAFETY: the function requires an array of ibv_get_device_list, of which no device is used.
//!     unsafe { (verbs.ibv_free_device_list)(list) };
//! }
//! # Ok::<(), rdma_sys::LoadError>(())
//! ```
//!
//! # Where to find a verb
//!
//! | In C | Here |
//! |---|---|
//! | exported by the library: `ibv_alloc_pd`, `ibv_rereg_mr`, `ibv_resize_cq` | a field of [`Ibverbs`]: `(verbs.ibv_alloc_pd)(context)` |
//! | inline, through an object: `ibv_post_send`, `ibv_poll_cq`, `ibv_create_cq_ex` | a function of this crate |
//! | inline or a macro, with an exported symbol behind it: `ibv_reg_mr`, `ibv_query_port`, `ibv_query_gid_ex`, `ibv_query_device_ex`, `ibv_create_qp_ex` | a method of [`Ibverbs`]: `verbs.ibv_query_gid_ex(..)` |
//! | `rdma_*` of librdmacm | a field of [`RdmaCm`], or by the same rules as above |
//! | `ibv_fork_init` | a field; needed on kernels before 5.12 only (its page says why) |
//!
//! # Where the libraries come from
//!
//! | | a library is missing | a function is missing |
//! |---|---|---|
//! | default | [`LoadError`] says which paths were tried, and why each failed | the call fails with `EOPNOTSUPP` |
//! | feature `linked` | the program does not start | the call fails with `EOPNOTSUPP` if the function is newer than rdma-core 44, else the program does not start |
//!
//! By default, `RDMA_IBVERBS_PATH` and `RDMA_RDMACM_PATH` set the files to load, except in a
//! set-user-ID program, whose caller chose the environment; otherwise the dynamic loader searches
//! `libibverbs.so.1` and `librdmacm.so.1`. A library is never unloaded: its threads and providers
//! may run at any time.
//!
//! Feature `linked` binds the libraries at link time instead, for distributions. If one dependent
//! enables the feature and another does not, the libraries are linked for both.
//!
//! # Other targets, other headers
//!
//! The committed bindings are for x86_64 and aarch64 Linux with glibc or musl, on which all layouts
//! are the same. Feature `bindgen` makes them from the system's headers instead (or from those in
//! `RDMA_CORE_INCLUDE`) when the crate is built, which needs libclang and headers of rdma-core 44
//! or newer. Declarations that those headers lack are then missing from this crate too.
//!
//! A program that is linked statically with musl, which is Rust's default for that target, loads no
//! library: musl's `dlopen` fails there. `RUSTFLAGS=-Ctarget-feature=-crt-static` links it
//! dynamically. On macOS the crate compiles, and loads nothing. [`LoadError::obstacle`] tells both
//! cases from a library that is not installed.
//!
//! # What is checked
//!
//! `tests/it/abi` compares every size, offset and constant with the headers, `tests/it/twins` every
//! inline function with the same function in C, and a unit test every entry of the tables with the
//! headers' declarations; with feature `bindgen` the compiler compares the entries.

// Files:
//
//   inline/                 the inline functions of the headers, ported by hand with the same
//                           names and checks
//   ibverbs.rs, rdmacm.rs   the exported functions, one list per library
//   table.rs                `function_table!` makes of a list the struct, the entries that fail
//                           as unsupported, and the declarations for feature `linked`
//   load.rs                 finds and loads the libraries
//   os.rs, os/              calls of the C library: on Linux, elsewhere
//   transition.rs           `QpTransition`: `rdma` explains a refusal with it, rdma-soft refuses
//                           by it
//   bindings.rs, macros.rs  types and constants: generated by `cargo xtask bindings`; those that
//                           bindgen cannot read

#[cfg(not(any(
    feature = "bindgen",
    all(
        any(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")), target_os = "macos"),
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )
)))]
compile_error!(
    "rdma-sys has bindings for x86_64 and aarch64 Linux with glibc or musl, and for macOS, where no library is loaded; \
     feature `bindgen` makes them from this system's headers of rdma-core"
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

/// Generated by the build script.
#[cfg(feature = "bindgen")]
#[allow(warnings, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction, reason = "generated")]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

/// The headers' declarations of the exported functions, with which the tables are compared.
#[cfg(all(test, not(feature = "bindgen")))]
#[path = "../tests/it/abi/functions.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "generated")]
mod functions;

/// Generated by the build script.
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
#[cfg_attr(not(target_os = "linux"), path = "os/elsewhere.rs")]
mod os;
mod rdmacm;
mod transition;

pub use self::{
    bindings::*,
    ibverbs::Ibverbs,
    inline::*,
    load::{Attempt, LoadError, Obstacle, Variable, trusted_variable},
    macros::*,
    rdmacm::RdmaCm,
    transition::{QpAttrMask, QpTransition},
};

#[cfg(feature = "linked")]
#[link(name = "ibverbs")]
unsafe extern "C" {}

#[cfg(feature = "linked")]
#[link(name = "rdmacm")]
unsafe extern "C" {}

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
