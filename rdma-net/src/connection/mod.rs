//! Connections: an end that sends and an end that receives.
//!
//! Files:
//!
//! ```text
//!   core.rs                    the lock; wakes tasks after it
//!   flow.rs                    the state under the lock
//!   flow/offers.rs, flow/staging.rs
//!                              long messages by OFFER, read and DONE; their memory
//!   flow/wakeups.rs            the tasks to wake
//!   sender.rs, receiver.rs, remote.rs
//!                              the handles
//!   operations.rs, fetched.rs  one-sided operations in flight; buffers of `Remote::fetch`
//! ```

mod core;
mod fetched;
mod flow;
mod operations;
mod receiver;
mod remote;
mod sender;

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) use self::core::{Core, Parts, Pool};
pub use self::fetched::Fetched;
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

    /// The number of the queue pair.
    #[cfg(test)]
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

    /// Closes the connection with code 0: [`close_with`](Self::close_with).
    ///
    /// # Errors
    ///
    /// As for [`close_with`](Self::close_with).
    pub async fn close(self) -> Result<u32, Failure> {
        self.close_with(0).await
    }

    /// Ends this side's data, discards what the peer still sends, and waits until both sides have
    /// closed. The peer learns the code, whose meaning is the application's. Returns the peer's
    /// code.
    ///
    /// A peer that has not closed after the node's [`timeout`](super::NodeOptions::timeout) is cut
    /// off, and has [`linger`](super::NodeOptions::linger) to confirm that. A server under load
    /// that must not look lost needs a longer timeout.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed before, or `Timeout`: the peer may have all messages
    /// nevertheless. If the peer confirms with success, it has received all messages.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, mut server) = connected()?;
    /// const DONE: u32 = 1;
    /// const BUSY: u32 = 2;
    ///
    /// let server = std::thread::spawn(move || {
    ///     block_on(async {
    ///         assert!(server.next().await?.is_none(), "the end of the data");
    ///         // Each side learns the other's code.
    ///         server.close_with(BUSY).await
    ///     })
    /// });
    /// assert_eq!(block_on(client.close_with(DONE))?, BUSY);
    /// assert_eq!(server.join().expect("no panic")?, DONE);
    /// # Ok(()) }
    /// ```
    pub async fn close_with(self, code: u32) -> Result<u32, Failure> {
        let core = self.sender.core();
        core.tell(|flow, now| {
            flow.stop_receiving(now);
            flow.close(code, now, core.close_time());
        });
        poll_fn(|cx| core.poll_closed(cx)).await
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
