//! Received datagrams: the payload and its source.

use std::fmt;
use std::ops::{Deref, DerefMut};

use rdma_sys::{ibv_wc, ibv_wc_status};

use super::completion::Completion;
use super::message::Message;
use crate::ah::{Grh, Source};
use crate::mr::{Buffer, Segment};
use crate::ring::Info;

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
    message: Message,
    source: Source,
}

impl Datagram {
    pub(crate) fn new(message: Message, source: Source) -> Self {
        Self { message, source }
    }

    /// The sender's address.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The whole buffer as it was posted, GRH included, to be posted again.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.message.into_buffer()
    }
}

impl Deref for Datagram {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.message
    }
}

impl DerefMut for Datagram {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.message
    }
}

impl AsRef<[u8]> for Datagram {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("len", &self.len()).field("source", &self.source).finish_non_exhaustive()
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
            pub fn source(&self) -> Option<$crate::Source> {
                let (wc, info) = self.parts();
                $crate::cq::datagram::source(wc, info, self.peek())
            }

            /// Takes the datagram with its buffer, if this is a successful receive of a datagram
            /// queue pair and its first segment is a [`Buffer`] that has not been taken.
            ///
            /// If the message was scattered over several segments, the result holds the first one.
            #[must_use = "the buffer is given up otherwise"]
            pub fn take_datagram(&mut self) -> Option<$crate::Datagram> {
                let source = self.source()?;
                // A first segment that cannot hold the GRH holds no part of the payload.
                self.peek().filter(|segment| segment.len >= $crate::Grh::LEN)?;
                Some($crate::Datagram::new(self.received()?, source))
            }
        }
    };
}
receives_datagrams!(Completion<'_>);
#[cfg(feature = "aio")]
pub(crate) use receives_datagrams;

/// The sender of a datagram, if this is the completion of its receive.
pub(crate) fn source(wc: &ibv_wc, info: Info, first: Option<&Segment>) -> Option<Source> {
    let is_received = info.is_datagram() && wc.status == ibv_wc_status::IBV_WC_SUCCESS;
    is_received.then(|| Source::new(wc, || first.and_then(Segment::front).map(Grh::from_bytes)))
}
