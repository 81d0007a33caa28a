//! Futures for any executor.
//!
//! All that this module needs of an executor is a descriptor that can be waited for: [`Readiness`].
//! The features `tokio` and `smol` implement it for these executors.

mod block_on;
mod readiness;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use block_on::block_on;
pub use readiness::Readiness;
