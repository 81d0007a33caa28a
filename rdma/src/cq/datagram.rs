//! Received datagrams: the payload and its source.

use std::fmt;
use std::ops::{Deref, DerefMut};

use rdma_sys::{ibv_wc, ibv_wc_status};

use super::completion::Completion;
use crate::ah::{Grh, Source};
use crate::mr::{Buffer, Kind, Segment};

/// A received datagram in the buffer that was posted for it; dereferences to the payload.
///
/// # Examples
///
/// ```no_run
/// # type Result = std::result::Result<(), Box<dyn std::error::Error>>;
/// # fn f(qp: &mut rdma::QueuePair<rdma::transport::Ud>, poller: &mut rdma::Poller) -> Result {
/// let mut completion = poller.wait(None)?.expect("no timeout");
/// if let Some(datagram) = completion.take_datagram() {
///     let source = *datagram.source();
///     println!("{:?} from {:#x}", &datagram[..], source.qpn);
///     let address = qp.answer(&source)?;
///     let thanks = rdma::op::send_inline(b"thanks").to(&address, source.qpn, 0x1234_5678);
///     qp.post_send(thanks).map_err(|refused| refused.error())?;
///     // The same memory for the next one.
///     qp.post_recv(datagram.into_buffer(), 0)?;
/// }
/// # Ok(()) }
/// ```
pub struct Datagram {
    buffer: Buffer,
    /// Payload bytes after the GRH; at most the buffer's length less the GRH.
    len: usize,
    source: Source,
}

impl Datagram {
    /// The sender's address.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The whole buffer as it was posted, GRH included, to be posted again.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The payload's range in the buffer, which is at least as long.
    fn range(&self) -> std::ops::Range<usize> {
        Grh::LEN..Grh::LEN + self.len
    }
}

impl Deref for Datagram {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range()]
    }
}

impl DerefMut for Datagram {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.buffer[range]
    }
}

impl AsRef<[u8]> for Datagram {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("len", &self.len).field("source", &self.source).finish_non_exhaustive()
    }
}

/// Generates the methods that take a received datagram.
macro_rules! receives_datagrams {
    ($type:ty) => {
        impl $type {
            /// The sender of a datagram, if this is a successful receive of a datagram queue pair.
            /// Call this before the memory is taken.
            ///
            /// For a message in a single [`Buffer`], [`take_datagram`](Self::take_datagram) returns
            /// the source and the payload together.
            #[must_use]
            pub fn source(&self) -> Option<Source> {
                let (wc, info) = self.parts();
                if !info.is_datagram() || wc.status != ibv_wc_status::IBV_WC_SUCCESS {
                    return None;
                }
                Some(source(wc, self.peek()))
            }

            /// Takes the datagram with its buffer, if this is a successful receive of a datagram
            /// queue pair and its next segment is a [`Buffer`].
            ///
            /// If the message was scattered over several segments, the result holds the first one.
            #[must_use = "the buffer is given up otherwise"]
            pub fn take_datagram(&mut self) -> Option<Datagram> {
                let source = self.source()?;
                let received = self.byte_len();
                let room =
                    self.peek().filter(|segment| segment.kind() == Kind::LocalHost)?.len.checked_sub(Grh::LEN)?;
                let buffer = self.take_buffer()?;
                // The device's byte count is not trusted: it must not reach past the buffer.
                Some(Datagram { buffer, len: received.saturating_sub(Grh::LEN).min(room), source })
            }
        }
    };
}
receives_datagrams!(Completion<'_>);
#[cfg(feature = "aio")]
receives_datagrams!(crate::aio::Received);

fn source(wc: &ibv_wc, first: Option<&Segment>) -> Source {
    Source::new(wc, || first.and_then(Segment::front).map(Grh::from_bytes))
}
