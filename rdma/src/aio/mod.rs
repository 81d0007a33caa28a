//! Futures for requests, messages and events, for any executor.
//!
//! A [`Driver`] fetches the completions of one completion queue, and wakes for each the one task
//! that waits for it. Its [`Handle`] turns a connected queue pair into a [`QueuePair`], whose
//! requests are futures ([`InFlight`]) and whose messages are awaited. [`Events`] are the events of
//! connections and of devices.
//!
//! A library that delivers completions to something else than futures, for example to connections,
//! stands on the [`Reactor`] under the driver.
//!
//! All that this module needs of an executor is a descriptor that can be waited for: [`Readiness`].
//! The features `tokio` and `smol` implement it for these executors. Without an executor, a thread
//! calls [`Driver::wait`], or a poll loop calls [`Driver::turn`]:
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//! use rdma::aio::{Driver, DriverOptions};
//! use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, op};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let opened = rdma::open(&DeviceSelector::Any)?;
//! let pd = opened.context.alloc_pd()?;
//! let (mut driver, handle) = Driver::new(&opened.context, &DriverOptions::new())?;
//! let options = InitOptions::new().port(opened.port);
//! let build = || QueuePair::builder(&pd).cq(handle.completion_queue()).build();
//! let (a, mut b) = (build()?.init(&options)?, build()?.init(&options)?);
//! // Before the connection, so that the peer's first message finds it.
//! handle.post_recv(&mut b, pd.allocate(64)?)?;
//! let (to_a, to_b) = (a.endpoint(), b.endpoint());
//! let mut a = handle.queue_pair(a.connect(&to_b, &ConnectOptions::new())?)?;
//! let mut b = handle.queue_pair(b.connect(&to_a, &ConnectOptions::new())?)?;
//!
//! let mut talk = pin!(async {
//!     let mut message = pd.allocate(5)?;
//!     message.copy_from_slice(b"hello");
//!     let sent = a.start(op::send(message))?;
//!     let mut received = b.next_received().await?;
//!     let len = received.byte_len();
//!     let buffer = received.take_buffer().ok_or("the buffer that was posted")?;
//!     assert_eq!(&buffer[..len], b"hello");
//!     // The memory of the send comes back too.
//!     let _message = sent.await.into_memory()?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! });
//! let mut cx = Context::from_waker(Waker::noop());
//! loop {
//!     if let Poll::Ready(done) = talk.as_mut().poll(&mut cx) {
//!         break done;
//!     }
//!     driver.turn(64)?;
//! }
//! # }
//! ```
//!
//! # Cancellation
//!
//! Every future may be dropped at any time. The call neither waits nor makes a system call.
//!
//! | Dropped | Effect |
//! | --- | --- |
//! | [`InFlight`] | the request goes on; its completion frees its memory |
//! | [`QueuePair::next_received`], [`QueuePair::reserve`], [`Events::next`] | none: no message, slot or event is lost |
//! | [`QueuePair::shutdown`] | the queue pair is in the error state; its requests end meanwhile |
//! | [`Requester::post`], [`Requester::reserve`], [`ReservedSlot`] | the next task has the slot; a request that was posted goes on |
//! | [`QueuePair`], or the last of its halves and requesters | all its requests end; futures get their memory back |
//! | [`Driver`], or the task that runs it | futures end with [`Error::DriverGone`]; memory in flight comes free with its queue pair |
//!
//! Verbs cannot cancel a single request. A deadline therefore ends only the wait: the memory of an
//! abandoned request stays with the device until the request has ended.
//!
//! # Several tasks
//!
//! | A queue pair of | Type | Lock |
//! | --- | --- | --- |
//! | one task | [`QueuePair`] | none |
//! | a task that sends and one that receives | [`SendHalf`], [`RecvHalf`]: [`QueuePair::into_split`] | none |
//! | several tasks that send, each awaiting its own requests | [`Requester`], which is `Clone`: [`SendHalf::into_requester`] | one, held for a post |
//!
//! Tasks that find the send queue full wait for a slot in the order of their coming. All handles
//! keep the queue pair; [`Requester::close`] and `shutdown` of a half end it for all of them.
//!
//! # Waiting
//!
//! [`Strategy`] says when a driver sleeps: never, at once, or after some turns without a
//! completion. A driver that sleeps costs no processor time, and a wake-up: between two cores that
//! is some 30 microseconds. The default, 20 turns before it sleeps, keeps a conversation at the
//! speed of polling and still sleeps when there is none. Let the driver be a task of the runtime
//! whose tasks use it: a wake-up from another thread costs as much as one by the device.

// Files:
//
//   reactor.rs, options.rs     turns, arms, sleeps and wakes, whatever a turn delivers
//   driver.rs, registered.rs   fetches completions, whose sinks wake futures
//   queue_pair.rs, halves.rs   starts requests, awaits messages; the same in two tasks
//   requester.rs, turns.rs     starts requests of several tasks; who has the next free slot
//   in_flight.rs, received.rs  the future of a request; a received message
//   events.rs                  events of connections, devices and completion channels
//   readiness.rs               what an executor provides; `tokio.rs` and `smol.rs` implement it
//   block_on.rs                the smallest executor

mod block_on;
mod driver;
mod error;
mod events;
mod halves;
mod in_flight;
mod options;
mod queue_pair;
mod reactor;
mod readiness;
mod received;
mod registered;
mod requester;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;
mod turns;

pub use block_on::block_on;
pub use driver::{Driver, Handle};
pub use error::Error;
pub use events::{Events, Source};
pub use halves::{RecvHalf, SendHalf};
pub use in_flight::{Done, Finished, InFlight};
pub use options::{DriverOptions, Strategy};
pub use queue_pair::{QueuePair, Slot};
pub use reactor::{Bell, Handler, Reactor};
pub use readiness::Readiness;
pub use received::Received;
pub use requester::{Requester, ReservedSlot};

#[cfg(test)]
mod tests;
