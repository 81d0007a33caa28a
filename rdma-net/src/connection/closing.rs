//! The end of a connection: closing it by any of its handles, and waiting for its end.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use super::core::Core;
use super::{Connection, Receiver, Sender};
use crate::failure::Failure;
use crate::waiters::Place;

impl Connection {
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
    /// A peer that has not closed after the node's [`timeout`](crate::NodeOptions::timeout) is cut
    /// off, and has [`linger`](crate::NodeOptions::linger) to confirm that. A server under load
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
        close(self.core(), code).await
    }

    /// Waits until the connection has ended: [`Sender::closed`].
    ///
    /// # Errors
    ///
    /// As for [`Sender::closed`].
    pub async fn closed(&self) -> Result<u32, Failure> {
        closed(self.core()).await
    }
}

impl Sender {
    /// Closes the connection with code 0: [`close_with`](Self::close_with).
    ///
    /// # Errors
    ///
    /// As for [`Connection::close_with`].
    pub async fn close(self) -> Result<u32, Failure> {
        self.close_with(0).await
    }

    /// Closes the connection, also for its other handles, as [`Connection::close_with`] does.
    ///
    /// Clones fail with `Closed` from now on. The [`Receiver`] returns `None`: messages that it has
    /// not taken are discarded. A message that is not [flushed](Self::poll_flush) yet is discarded,
    /// too. The close begins with the first poll of the future; dropping the future later stops
    /// only the wait. A future that was never polled drops only its handle.
    ///
    /// # Errors
    ///
    /// As for [`Connection::close_with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// const IDLE: u32 = 4;
    ///
    /// # let client = std::thread::spawn(move || block_on(async {
    /// #     let mut client = client;
    /// #     client.send("request").await?;
    /// #     assert!(client.next().await?.is_some() && client.next().await?.is_none());
    /// #     client.close().await
    /// # }));
    /// let (to, mut from) = server.split();
    /// block_on(async {
    ///     if let Some(request) = from.next().await? {
    ///         to.send(&request).await?;
    ///     }
    ///     to.close_with(IDLE).await
    /// })?;
    /// # assert_eq!(client.join().expect("no panic")?, IDLE);
    /// # Ok(()) }
    /// ```
    pub async fn close_with(self, code: u32) -> Result<u32, Failure> {
        close(self.core(), code).await
    }

    /// Waits until the connection has ended, and returns the peer's code: a task that has nothing
    /// to send learns that its peer is gone.
    ///
    /// A connection ends when it fails, when the peer closes it without waiting for this side, and
    /// when both sides have ended their data. A peer that has ended its data waits for the end of
    /// this side's: the [`Receiver`] returns `None` then, and this call still waits.
    ///
    /// Any number of tasks may wait.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let (to, mut from) = server.split();
    /// let publisher = std::thread::spawn(move || block_on(async move { to.closed().await }));
    /// # let client = std::thread::spawn(move || block_on(client.close_with(7)));
    /// block_on(async {
    ///     while let Some(message) = from.next().await? {
    ///         println!("{} bytes", message.len());
    ///     }
    ///     from.close().await
    /// })?;
    /// assert_eq!(publisher.join().expect("no panic")?, 7);
    /// # client.join().expect("no panic")?;
    /// # Ok(()) }
    /// ```
    pub async fn closed(&self) -> Result<u32, Failure> {
        closed(self.core()).await
    }

    /// Joins the two halves of a connection.
    ///
    /// Clones of the sender may be left: they still send on the connection, and the data of this
    /// side ends with the last of them.
    ///
    /// # Errors
    ///
    /// The halves, if they are those of different connections.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_net::{Connection, ReuniteError};
    /// fn greet(connection: Connection) -> Result<Connection, ReuniteError> {
    ///     let (to, from) = connection.split();
    ///     to.reunite(from)
    /// }
    /// ```
    pub fn reunite(self, receiver: Receiver) -> Result<Connection, ReuniteError> {
        if !Arc::ptr_eq(self.core(), receiver.core()) {
            return Err(ReuniteError { sender: self, receiver });
        }
        Ok(Connection { sender: self, receiver })
    }
}

impl Receiver {
    /// Closes the connection with code 0: [`close_with`](Self::close_with).
    ///
    /// # Errors
    ///
    /// As for [`Connection::close_with`].
    pub async fn close(self) -> Result<u32, Failure> {
        self.close_with(0).await
    }

    /// Closes the connection, also for its senders, as [`Connection::close_with`] does: what they
    /// have sent still goes, and then they fail with `Closed`. The close begins with the first poll
    /// of the future; dropping the future later stops only the wait. A future that was never polled
    /// drops only its handle.
    ///
    /// # Errors
    ///
    /// As for [`Connection::close_with`].
    pub async fn close_with(self, code: u32) -> Result<u32, Failure> {
        close(self.core(), code).await
    }

    /// Waits until the connection has ended: [`Sender::closed`].
    ///
    /// # Errors
    ///
    /// As for [`Sender::closed`].
    pub async fn closed(&self) -> Result<u32, Failure> {
        closed(self.core()).await
    }
}

/// The halves of different connections, which [`Sender::reunite`] gives back.
#[non_exhaustive]
pub struct ReuniteError {
    /// The half that sends.
    pub sender: Sender,
    /// The half that receives.
    pub receiver: Receiver,
}

impl fmt::Debug for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are those of different connections")
    }
}

impl std::error::Error for ReuniteError {}

/// Closes the connection, and waits for its end.
async fn close(core: &Core, code: u32) -> Result<u32, Failure> {
    core.tell(|flow, now| {
        flow.discard_received();
        flow.close(code, now, core.close_time());
    });
    closed(core).await
}

async fn closed(core: &Core) -> Result<u32, Failure> {
    let mut waiting = Waiting { core, place: None };
    poll_fn(|cx| core.poll_closed(&mut waiting.place, cx)).await
}

/// A task that waits for the end.
struct Waiting<'a> {
    core: &'a Core,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.core.tell(|flow, _| flow.leave_closers(&mut self.place));
        }
    }
}
