//! A byte stream over the messages of a connection.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use super::connection::{Connection, Message, Receiver, Sender};

/// A connection as a stream of bytes; both sides must use it as one.
///
/// A write copies bytes into a send buffer, posts them at once, and waits only while the peer can
/// take no more. More bytes than the [eager limit](super::NodeOptions::eager_limit) are copied into
/// memory that the peer reads, so that long writes are fast with any payload. A read copies from
/// the buffer that the bytes arrived in. The end of the peer's data is the end of the stream; a
/// connection that fails is an error and never an end.
///
/// The feature `tokio` implements tokio's `AsyncRead` and `AsyncWrite`, and `futures-io` those of
/// `futures-io`. Writes have been posted when they return, so a flush does nothing; a shutdown ends
/// this side's data. Dropping the stream closes the connection in the background, after the data.
///
/// # Examples
///
/// ```
/// use rdma_net::Connection;
///
/// async fn greet(connection: Connection) -> std::io::Result<()> {
///     let mut stream = connection.into_stream();
///     stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
///     stream.finish();
///     let mut answer = [0; 512];
///     while let len @ 1.. = stream.read(&mut answer).await? {
///         println!("{}", answer[..len].escape_ascii());
///     }
///     Ok(())
/// }
/// ```
pub struct Stream {
    sender: Sender,
    receiver: Receiver,
    /// The message that is being read, and the number of its bytes that have been read.
    front: Option<(Message, usize)>,
}

impl Connection {
    /// Uses the connection as a stream of bytes.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        let (sender, receiver) = self.split();
        Stream { sender, receiver, front: None }
    }
}

impl Stream {
    /// Reads some bytes; 0 at the end of the stream.
    ///
    /// Dropping the future loses no bytes.
    ///
    /// # Errors
    ///
    /// The [`Failure`](super::Failure) of the connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let (mut client, mut server) = (client.into_stream(), server.into_stream());
    /// block_on(async {
    ///     client.write_all(b"all of it").await?;
    ///     client.finish();
    ///     let (mut bytes, mut text) = ([0; 4], Vec::new());
    ///     while let len @ 1.. = server.read(&mut bytes).await? {
    ///         text.extend_from_slice(&bytes[..len]);
    ///     }
    ///     assert_eq!(text, b"all of it");
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read_into(cx, into)).await
    }

    /// Writes some bytes: at most a fragment, or 128 KiB of more than the eager limit. Returns how
    /// many.
    ///
    /// Dropping the future writes nothing.
    ///
    /// # Errors
    ///
    /// The [`Failure`](super::Failure) of the connection; `Closed` after
    /// [`finish`](Self::finish).
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write_from(cx, &[IoSlice::new(bytes)])).await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = self.write(bytes).await?;
            if len == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(len..).unwrap_or_default();
        }
        Ok(())
    }

    /// Ends this side's data: the peer reads the end of the stream after it.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// The local address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.sender.local_addr()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.sender.peer_addr()
    }

    fn poll_read_into(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let bytes = ready!(self.poll_front(cx))?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        self.consume_front(len);
        Poll::Ready(Ok(len))
    }

    /// The received bytes that are next; none at the end of the stream.
    fn poll_front(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        while self.front.as_ref().is_none_or(|(message, read)| *read == message.len()) {
            self.front = None;
            match ready!(self.receiver.poll_next(cx))? {
                Some(message) => self.front = Some((message, 0)),
                None => return Poll::Ready(Ok(&[])),
            }
        }
        Poll::Ready(Ok(self.front.as_ref().map_or(&[], |(message, read)| &message[*read..])))
    }

    /// Counts bytes as read; a message that has been read gives its buffer back.
    fn consume_front(&mut self, len: usize) {
        if let Some((message, read)) = &mut self.front {
            *read = message.len().min(*read + len);
            if *read == message.len() {
                self.front = None;
            }
        }
    }

    fn poll_write_from(&mut self, cx: &Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.sender.poll_write(cx, slices).map_err(io::Error::from)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}

/// Implements the traits that tokio and futures-io have in common; they differ in how a read hands
/// its bytes over, and in the name of the shutdown.
#[cfg(any(feature = "tokio", feature = "futures-io"))]
macro_rules! stream_traits {
    ({ $($read:item)* } { $($write:item)* } $shutdown:ident) => {
        impl AsyncRead for Stream { $($read)* }

        impl AsyncBufRead for Stream {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                self.get_mut().poll_front(cx)
            }

            fn consume(mut self: Pin<&mut Self>, len: usize) {
                self.consume_front(len);
            }
        }

        impl AsyncWrite for Stream {
            $($write)*

            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.poll_write_from(cx, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_from(cx, slices)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.finish();
                Poll::Ready(Ok(()))
            }
        }
    };
}

/// The traits of tokio.
#[cfg(feature = "tokio")]
mod with_tokio {
    use std::pin::Pin;

    use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    stream_traits! {
        {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let bytes = ready!(self.poll_front(cx))?;
                let len = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..len]);
                self.consume_front(len);
                Poll::Ready(Ok(()))
            }
        }
        {
            fn is_write_vectored(&self) -> bool {
                true
            }
        }
        poll_shutdown
    }
}

/// The traits of futures-io.
#[cfg(feature = "futures-io")]
mod with_futures_io {
    use std::pin::Pin;

    use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

    use super::*;

    stream_traits! {
        {
            fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
                self.poll_read_into(cx, buf)
            }
        }
        {}
        poll_close
    }
}
