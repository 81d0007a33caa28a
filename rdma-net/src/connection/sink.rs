//! Messages by `poll_ready`, `start_send`, `poll_flush` and `poll_close`, as sinks have them.
//!
//! A sink that is ready reserves nothing, so that one that is ready and not used holds nobody up.
//! If another sender has taken the credit meanwhile, `start_send` keeps the message until the next
//! flush.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use rdma::{Error, ErrorKind, Verb};

use super::Sender;
use super::sender::{leave, poll_message, try_message};
use crate::failure::{Failure, FailureKind};
use crate::waiters::Place;

/// What a sender keeps between two polls.
#[derive(Default)]
pub(super) struct Polled {
    /// A message that was started and is not sent. Its memory is used again for the next.
    message: Vec<u8>,
    has_message: bool,
    /// The place among the waiting senders.
    pub(super) place: Option<Place>,
    /// Whether [`Sender::poll_close`] has ended the data of this sender.
    pub(super) is_ended: bool,
}

impl Sender {
    /// Waits until the peer can take a message, without a claim on it: a sender that is ready and
    /// sends nothing holds no other one up. While others wait to send, it is ready at once, and its
    /// message has its turn in [`poll_flush`](Self::poll_flush).
    ///
    /// [`start_send`](Self::start_send) sends the message then. With the feature `futures` a sender
    /// is a `Sink` of messages, by these methods. [`send`](Self::send) is the same in one call, for
    /// tasks that can wait in a future.
    ///
    /// # Errors
    ///
    /// `Closed`; the reason why the connection failed.
    ///
    /// # Examples
    ///
    /// A future of one's own:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, mut server) = connected()?;
    /// use std::task::{Context, Poll, ready};
    /// use rdma_net::Sender;
    ///
    /// /// Sends numbers up to 10; `next` is the state of the future.
    /// fn poll_count(to: &mut Sender, next: &mut u8, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
    ///     while *next < 10 {
    ///         ready!(to.poll_ready(cx))?;
    ///         to.start_send([*next])?;
    ///         *next += 1;
    ///     }
    ///     to.poll_close(cx)
    /// }
    ///
    /// let (mut to, _from) = client.split();
    /// # let counting = std::thread::spawn(move || {
    /// let mut next = 0;
    /// block_on(std::future::poll_fn(|cx| poll_count(&mut to, &mut next, cx)))
    /// # });
    /// # let mut count = 0;
    /// # block_on(async {
    /// #     while let Some(message) = server.next().await? {
    /// #         assert_eq!(message[..], [count]);
    /// #         count += 1;
    /// #     }
    /// #     Ok::<(), Failure>(())
    /// # })?;
    /// # assert_eq!(count, 10);
    /// # Ok(counting.join().expect("no panic")?)
    /// # }
    /// ```
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.check_open()?;
        ready!(self.poll_flush(cx))?;
        // A hint, and all that a sink promises: `start_send` looks again.
        if self.polled.place.is_none() && self.core().may_send.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let Self { core, polled: Polled { place, .. } } = self;
        core.poll(cx, false, |flow, now, task| {
            let failure = flow.send_failure();
            if failure.is_none() && flow.senders.is_alone(*place) && !flow.has_room() {
                flow.wait_to_send(place, task);
                return Poll::Pending;
            }
            flow.leave_senders(place);
            // Passes the turn on.
            flow.pump(now);
            Poll::Ready(failure.map_or(Ok(()), Err))
        })
    }

    /// Sends a message, which is copied, after [`poll_ready`](Self::poll_ready) was ready.
    ///
    /// The message is on its way at once, unless the peer can take none, or other senders of the
    /// connection wait: then it is kept, and [`poll_flush`](Self::poll_flush) sends it. A message
    /// that is kept is lost if the sender is dropped, and [`send`](Self::send) does not wait for
    /// it.
    ///
    /// # Errors
    ///
    /// `TooLong`; `Closed`; `Local` (`QueueFull`) without a `poll_ready` while a message is kept;
    /// the reason why the connection failed.
    pub fn start_send(&mut self, message: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.check_open()?;
        let Self { core, polled } = self;
        if polled.has_message {
            return Err(Error::new(Verb::PostSend, ErrorKind::QueueFull).into());
        }
        let message = message.as_ref();
        if !try_message(core, &mut polled.place, message)? {
            polled.message.clear();
            polled.message.extend_from_slice(message);
            polled.has_message = true;
        }
        Ok(())
    }

    /// Waits until the message of [`start_send`](Self::start_send) is on its way, if one is kept. A
    /// sender that was dropped instead would lose it.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send). The message is given up.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let Self { core, polled } = self;
        if !polled.has_message {
            return Poll::Ready(Ok(()));
        }
        let sent = ready!(poll_message(core, &mut polled.place, cx, &polled.message));
        polled.has_message = false;
        Poll::Ready(sent)
    }

    /// Flushes, and then ends the data of this sender: it sends nothing more. The peer's
    /// [`Receiver::next`](super::Receiver::next) returns `None` once all clones have ended.
    ///
    /// # Errors
    ///
    /// As for [`poll_flush`](Self::poll_flush).
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        ready!(self.poll_flush(cx))?;
        self.end();
        Poll::Ready(Ok(()))
    }

    /// Ends the data of this sender, once.
    pub(super) fn end(&mut self) {
        leave(&self.core, &mut self.polled.place);
        if !std::mem::replace(&mut self.polled.is_ended, true) {
            self.core.drop_sender();
        }
    }

    /// Fails once this sender has ended its data.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        if self.polled.is_ended { Err(Failure::new(FailureKind::Closed)) } else { Ok(()) }
    }
}

/// The traits of the crates `futures-core` and `futures-sink`.
#[cfg(feature = "futures")]
mod with_futures {
    use std::pin::Pin;

    use futures_core::Stream;
    use futures_core::stream::FusedStream;
    use futures_sink::Sink;

    use super::*;
    use crate::connection::{Connection, Message, Receiver};

    /// The messages, and then the failure if there is one. After it the stream has ended;
    /// [`Receiver::next`] returns the failure again.
    impl Stream for Receiver {
        type Item = Result<Message, Failure>;

        fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let receiver = self.get_mut();
            if receiver.has_ended {
                return Poll::Ready(None);
            }
            let item = ready!(Self::poll_next(receiver, cx)).transpose();
            receiver.has_ended = !matches!(item, Some(Ok(_)));
            Poll::Ready(item)
        }
    }

    impl FusedStream for Receiver {
        fn is_terminated(&self) -> bool {
            self.has_ended
        }
    }

    /// Messages of this side, by [`Sender::poll_ready`] and the methods beside it.
    impl<M: AsRef<[u8]>> Sink<M> for Sender {
        type Error = Failure;

        fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            Self::poll_ready(self.get_mut(), cx)
        }

        fn start_send(self: Pin<&mut Self>, message: M) -> Result<(), Failure> {
            Self::start_send(self.get_mut(), message)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            Self::poll_flush(self.get_mut(), cx)
        }

        fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            Self::poll_close(self.get_mut(), cx)
        }
    }

    /// The messages of the peer, as of the [`Receiver`].
    impl Stream for Connection {
        type Item = Result<Message, Failure>;

        fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Stream::poll_next(Pin::new(&mut self.get_mut().receiver), cx)
        }
    }

    impl FusedStream for Connection {
        fn is_terminated(&self) -> bool {
            self.receiver.is_terminated()
        }
    }

    /// Messages of this side, as of the [`Sender`]. Closing the sink ends this side's data; the
    /// peer's still come.
    impl<M: AsRef<[u8]>> Sink<M> for Connection {
        type Error = Failure;

        fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            self.get_mut().sender.poll_ready(cx)
        }

        fn start_send(self: Pin<&mut Self>, message: M) -> Result<(), Failure> {
            self.get_mut().sender.start_send(message)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            self.get_mut().sender.poll_flush(cx)
        }

        fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            self.get_mut().sender.poll_close(cx)
        }
    }
}
