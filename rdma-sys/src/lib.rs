//! Raw bindings to libibverbs and librdmacm.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the committed bindings are for x86_64 and aarch64 Linux with glibc");

#[macro_use]
mod table;
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
#[allow(dead_code, missing_docs, unreachable_pub, reason = "generated")]
mod functions;
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
