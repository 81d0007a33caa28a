//! Futures for any executor.
//!
//! All that this module needs of an executor is a descriptor that can be waited for: [`Readiness`].
//! The features `tokio` and `smol` implement it for these executors.

mod block_on;
mod driver;
mod error;
mod events;
mod in_flight;
mod options;
mod queue_pair;
mod readiness;
mod received;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use block_on::block_on;
pub use driver::{Driver, Handle};
pub use error::Error;
pub use events::{Events, Source};
pub use in_flight::{Done, Finished, InFlight};
pub use options::{DriverOptions, Strategy};
pub use queue_pair::{QueuePair, Slot};
pub use readiness::Readiness;
pub use received::Received;

#[cfg(test)]
mod tests;
