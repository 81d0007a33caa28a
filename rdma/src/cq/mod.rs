//! Completion queues: finished requests report here.
//!
//! A queue pair that is attached to a completion queue reserves entries in it for all its requests,
//! so that the completion queue cannot overrun.
//!
//! # Files
//!
//! ```text
//!   queue.rs, poll.rs         the queue; fetches completions and routes them
//!   completion.rs, held.rs, message.rs, datagram.rs
//!                             completions hand memory back
//!   foreign.rs                queues that other code has made
//!   sharing.rs                any number of pollers and scopes on one queue
//!   stats.rs                  what the queue and its pollers have done
//!   capacity.rs, attached.rs  reservations; the share of a queue pair
//!   wait.rs, backoff.rs, channel.rs
//!                             waits: spin, yield, sleep
//! ```
//!
//! # Safety
//!
//! 1. A [`CqInner`] owns a completion queue that its context's function table created, or has it
//!    from the caller of a `from_raw`, who keeps it. Queue pairs
//!    attached to it hold an `Arc` of its [`Handle`](crate::handle::Handle), so the completion
//!    queue is destroyed after them.
//! 2. Events are acknowledged before they are returned, so destroying a queue does not block on a
//!    caller.
//! 3. No provider function is called in a forked child.

mod attached;
mod backoff;
mod capacity;
mod channel;
pub(crate) mod completion;
pub(crate) mod datagram;
mod foreign;
mod held;
pub(crate) mod message;
mod poll;
mod queue;
mod sharing;
mod stats;
mod wait;

pub(crate) use attached::{Attached, Reservation};
pub use backoff::{Backoff, Pause, Pauses};
pub use channel::CompletionChannel;
pub use completion::{Completion, Released};
pub use datagram::Datagram;
pub use message::Message;
#[cfg(feature = "aio")]
pub(crate) use poll::Fetched;
pub use poll::Poller;
pub(crate) use queue::CqInner;
pub use queue::{CompletionQueue, CqBuilder};
#[cfg(feature = "aio")]
pub(crate) use sharing::FETCH;
pub use stats::CqStats;
pub use wait::Wakeup;

#[cfg(test)]
mod tests;
