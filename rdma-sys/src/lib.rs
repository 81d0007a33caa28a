//! Raw bindings to libibverbs and librdmacm.

#[allow(
    missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, clippy::all,
    unused_qualifications, unsafe_op_in_unsafe_fn, missing_debug_implementations,
    reason = "generated"
)]
mod bindings;
pub use bindings::*;
