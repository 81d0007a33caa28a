//! Connections: an end that sends and an end that receives.
//!
//! Files:
//!
//! ```text
//!   core.rs                    the lock; wakes tasks after it
//!   flow.rs                    the state under the lock
//!   flow/offers.rs, flow/staging.rs
//!                              long messages by OFFER, read and DONE; their memory
//!   flow/assembly.rs           messages that arrive in several fragments
//!   flow/wakeups.rs, flow/deadlines.rs
//!                              the tasks to wake; what is due after a time
//!   sender.rs, receiver.rs, remote.rs
//!                              the handles
//!   batch.rs, notifications.rs operations under one doorbell; the peer's writes with immediate data
//!   entries.rs                 the operations of a batch, and memory for them
//!   closing.rs                 closing by any handle, and waiting for the end
//!   sink.rs                    messages by `poll_ready` and `start_send`; the traits of `futures`
//!   operations.rs, fetched.rs  one-sided operations in flight; buffers of `Remote::fetch`
//!   flow/one_sided.rs, flow/arrivals.rs
//!                              both under the lock
//! ```

mod batch;
mod closing;
mod core;
mod entries;
mod fetched;
mod flow;
mod notifications;
mod operations;
mod receiver;
mod remote;
mod sender;
mod sink;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

pub use self::batch::{Batch, Outcome};
pub use self::closing::ReuniteError;
pub(super) use self::core::{Core, Parts, Pool};
pub use self::fetched::Fetched;
pub use self::notifications::Notifications;
pub use self::receiver::{Message, Receiver};
pub use self::remote::Remote;
pub use self::sender::{Permit, Sender};

use rdma::ProtectionDomain;

use super::failure::Failure;
use super::stats::ConnectionStats;

/// A connection to a peer: messages in both directions, in order.
///
/// A message may be as long as the peer accepts; the connection splits it into fragments. The
/// protocol sends no message for which the peer has no receive, so a slow reader slows the sender
/// down and costs it no memory.
///
/// Dropping a connection closes it in the background: messages that were sent still go, for at most
/// [`NodeOptions::linger`](super::NodeOptions::linger).
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

impl Connection {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self { sender: Sender::new(core), receiver: Receiver::new(core) }
    }

    /// The two halves, for two tasks. Dropping all clones of the sender ends this side's data: the
    /// peer's [`Receiver::next`] then returns `None`. Dropping both halves closes the connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let server = std::thread::spawn(move || {
    ///     let (to, mut from) = server.split();
    ///     block_on(async {
    ///         while let Some(number) = from.next().await? {
    ///             to.send([number[0] * 2]).await?;
    ///         }
    ///         Ok::<(), Failure>(())
    ///     })
    /// });
    /// let (to, mut from) = client.split();
    /// // One task sends while another receives, so that neither end waits for the other.
    /// std::thread::spawn(move || block_on(async {
    ///     for number in 0..100 {
    ///         to.send([number]).await?;
    ///     }
    ///     // Ends the data: the server leaves its loop.
    ///     drop(to);
    ///     Ok::<(), Failure>(())
    /// }));
    /// block_on(async {
    ///     for number in 0..100 {
    ///         assert_eq!(from.next().await?.expect("an answer")[..], [number * 2]);
    ///     }
    ///     assert!(from.next().await?.is_none());
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # server.join().expect("no panic")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        self.sender.core()
    }

    /// Another sender.
    #[cfg(test)]
    pub(super) fn clone_sender(&self) -> Sender {
        self.sender.clone()
    }

    #[cfg(test)]
    pub(super) fn qpn(&self) -> Option<u32> {
        self.sender.core().qpn()
    }

    /// The protection domain of the connection: [`Sender::domain`].
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        self.sender.domain()
    }

    /// Access to memory that the peer exposes: [`Sender::remote`].
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.sender.remote()
    }

    /// The notifications of the peer: [`Receiver::notifications`].
    #[must_use]
    pub fn notifications(&self) -> Notifications {
        self.receiver.notifications()
    }

    /// Sends a message: [`Sender::send`].
    ///
    /// # Errors
    ///
    /// As for [`Sender::send`].
    pub async fn send(&self, message: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.sender.send(message).await
    }

    /// Waits for the next message: [`Receiver::next`].
    ///
    /// # Errors
    ///
    /// As for [`Receiver::next`].
    pub async fn next(&mut self) -> Result<Option<Message>, Failure> {
        self.receiver.next().await
    }

    /// The local address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.sender.core().local_addr
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.sender.core().peer_addr
    }

    /// What the connection has done: [`Sender::stats`].
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.sender.stats()
    }

    /// Longest message that the peer accepts, in bytes.
    #[must_use]
    pub fn max_message(&self) -> u64 {
        self.sender.max_message()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}
