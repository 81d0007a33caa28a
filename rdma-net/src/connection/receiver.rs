//! The receiving half, and the messages.

use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::core::Core;
use super::flow::{Flow, Stored};
use super::notifications::Notifications;
use crate::failure::Failure;

/// The half of a connection that receives.
#[derive(Debug)]
pub struct Receiver {
    core: Arc<Core>,
    /// Whether the stream of the feature `futures` has ended.
    #[cfg(feature = "futures")]
    pub(super) has_ended: bool,
}

impl Receiver {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            #[cfg(feature = "futures")]
            has_ended: false,
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The notifications of the peer, which its [`write_imm`](super::Remote::write_imm) sends, if
    /// the node [takes](crate::NodeOptions::notifications) some. They are no messages: each way has
    /// its own order.
    #[must_use]
    pub fn notifications(&self) -> Notifications {
        Notifications::new(&self.core)
    }

    /// Waits for the next message. `None` means that the peer has ended its data, or that the node
    /// [shuts down](crate::Node::shutdown).
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed, after all messages that arrived before; `Closed` if
    /// the peer has closed without ending its data.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let (sender, _) = client.split();
    /// let (_, mut receiver) = server.split();
    /// block_on(async {
    ///     sender.send(b"one").await?;
    ///     sender.send(b"two").await?;
    ///     // Ends the data: the last of the senders is gone.
    ///     drop(sender);
    ///     let mut count = 0;
    ///     while let Some(message) = receiver.next().await? {
    ///         println!("{}", message.escape_ascii());
    ///         count += 1;
    ///     }
    ///     assert_eq!(count, 2);
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Message>, Failure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next message, as [`next`](Self::next) does, for futures of one's own. With the
    /// feature `futures` a receiver is a `Stream` of messages.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Failure>> {
        let is_likely_to_wait = !self.core.has_messages.load(Ordering::Relaxed);
        let stored = self.core.poll(cx, is_likely_to_wait, |flow, now, task| {
            if let Some(stored) = flow.take(now) {
                return Poll::Ready(Ok(Some(stored)));
            }
            match flow.receive_end() {
                Some(end) => Poll::Ready(end.map(|()| None)),
                None => {
                    flow.wait_for_message(task);
                    Poll::Pending
                }
            }
        });
        let message = |stored| Message { stored: Some(stored), core: Arc::clone(&self.core) };
        stored.map_ok(|stored| stored.map(message))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.core.tell(Flow::stop_receiving);
    }
}

/// A received message.
///
/// A message of one fragment stays in the buffer that it arrived in, and gives the buffer back when
/// it is dropped. The window of the connection shrinks while a program holds more messages than the
/// window has. A long message lies in the buffer that this side's device has read it into.
pub struct Message {
    /// Present until the drop.
    stored: Option<Stored>,
    core: Arc<Core>,
}

/// Without a copy, for code that keeps messages or hands them on as `Bytes`.
///
/// The bytes hold what the message holds: a message of one fragment is in its receive buffer, so
/// the peer must wait once the program holds twice the window of them. [`Message::into_bytes`]
/// copies short messages instead. The buffer goes back when the last clone or slice is dropped.
///
/// # Examples
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, mut server) = connected()?;
/// use bytes::Bytes;
///
/// # block_on(client.send("head body"))?;
/// let message = block_on(server.next())?.expect("a message");
/// let bytes = Bytes::from(message);
/// let body = bytes.slice(5..);
/// drop(bytes);
/// assert_eq!(&body[..], b"body");
/// # Ok(()) }
/// ```
#[cfg(feature = "bytes")]
impl From<Message> for bytes::Bytes {
    fn from(message: Message) -> Self {
        Self::from_owner(message)
    }
}

#[cfg(feature = "bytes")]
impl Message {
    /// The message as `Bytes`, which is copied if it has at most `copy_up_to` bytes, and otherwise
    /// holds the memory of the message.
    ///
    /// A copy gives the receive buffer back at once, so that a program may keep any number of short
    /// messages while the peer sends on. It costs an allocation, as the other way does, and the
    /// first clone or slice of a copy costs another.
    #[must_use]
    pub fn into_bytes(self, copy_up_to: usize) -> bytes::Bytes {
        if self.len() <= copy_up_to { bytes::Bytes::copy_from_slice(&self) } else { self.into() }
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.stored {
            Some(Stored::Whole(buffer, range)) => &buffer[range.clone()],
            Some(Stored::Assembled(bytes)) => bytes,
            Some(Stored::Read(buffer, _)) => buffer,
            Some(Stored::Offered(_)) | None => &[],
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(stored) = self.stored.take() {
            self.core.tell(|flow, now| flow.release(stored, now));
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).finish_non_exhaustive()
    }
}
