//! Exchange of GPU memory with other libraries.

#[cfg(feature = "dlpack")]
pub mod dlpack;
