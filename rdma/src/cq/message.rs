//! Received messages: the bytes that arrived, in the buffer that was posted for them.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use crate::ah::Grh;
use crate::mr::Buffer;

/// A received message in the buffer that was posted for it; dereferences to the received bytes.
///
/// # Examples
///
/// ```
/// # use rdma_testkit::{Pair, pair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
/// use rdma::op;
///
/// b.post_recv(pd.allocate(4096)?, 0)?;
/// a.post_send(op::send_inline(b"hello"))?;
/// loop {
///     let mut completion = poller.wait(None)?.expect("without a timeout there is a completion");
///     completion.status()?;
///     let Some(message) = completion.received() else { continue };
///     assert_eq!(&message[..], b"hello");
///     // The whole buffer, for the next message.
///     b.post_recv(message.into_buffer(), 0)?;
///     break;
/// }
/// # Ok(()) }
/// ```
pub struct Message {
    buffer: Buffer,
    /// The received bytes; ends in the buffer.
    range: Range<usize>,
}

impl Message {
    /// A message of which the device says that it has `received` bytes, in a buffer; those of a
    /// datagram begin with the GRH, which is not part of the message. The device's count is not
    /// trusted: it must not reach past the buffer.
    pub(crate) fn new(buffer: Buffer, received: usize, is_datagram: bool) -> Self {
        let start = if is_datagram { Grh::LEN.min(buffer.len()) } else { 0 };
        let range = start..received.clamp(start, buffer.len());
        Self { buffer, range }
    }

    /// The whole buffer as it was posted, to be posted again.
    #[inline]
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl DerefMut for Message {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        &mut self.buffer[range]
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Generates the method that takes a received message.
macro_rules! receives_messages {
    ($type:ty) => {
        impl $type {
            /// Takes the message with its buffer, if this is a successful receive and its first
            /// segment is a [`Buffer`] that has not been taken.
            ///
            /// If the message was scattered over several segments, the result holds the part in the
            /// first one, and [`take_buffer`](Self::take_buffer) and its siblings return the
            /// others: the rest of the [bytes](Self::byte_len) fills these in order. A datagram is
            /// returned without its GRH. The notice of a write ([`Opcode::RecvWriteImm`]) is no
            /// message: the peer wrote elsewhere.
            #[must_use = "the buffer is given up otherwise"]
            pub fn received(&mut self) -> Option<$crate::Message> {
                if self.opcode() != Opcode::Recv || self.status().is_err() || !self.is_untouched() {
                    return None;
                }
                let received = self.byte_len();
                let is_datagram = self.parts().1.is_datagram();
                Some($crate::Message::new(self.take_buffer()?, received, is_datagram))
            }
        }
    };
}
pub(crate) use receives_messages;
