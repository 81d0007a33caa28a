//! Completion queues: where finished work is reported.
//!
//! A queue pair that is attached to a completion queue reserves room in it for all its requests, so
//! that the queue cannot overrun.
//!
//! # Safety
//!
//! 1. A [`CqInner`] owns a completion queue that its context's table created. Queue pairs attached
//!    to it hold an `Arc` of its [`Handle`](crate::handle::Handle), so it is destroyed after them.
//! 2. Events are acknowledged before they are returned, so destroying a queue does not wait for
//!    anybody.
//! 3. Nothing is called in a forked child.

mod attached;
mod backoff;
mod capacity;
mod channel;
mod completion;
mod datagram;
mod held;
mod poll;
mod queue;
mod sharing;
mod wait;

pub(crate) use attached::Attached;
pub use backoff::Backoff;
pub use channel::CompletionChannel;
pub use completion::{Completion, Released};
pub use datagram::Datagram;
pub use poll::Poller;
pub(crate) use queue::CqInner;
pub use queue::{CompletionQueue, CqBuilder};
pub use wait::Wakeup;

#[cfg(test)]
mod tests;
