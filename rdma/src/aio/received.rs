//! A received message.

use rdma_sys::ibv_wc;

use crate::cq::completion::{self, takes};
use crate::cq::datagram::receives_datagrams;
use crate::cq::message::receives_messages;
use crate::mr::{Buffer, ExposedSlice, Gpu, Kind, Segment, SourceSlice};
use crate::ring::{Info, Published, Report};
use crate::types::{Opcode, WcError};

/// A received message, or a receive that failed, and the memory that was posted for it.
///
/// # Examples
///
/// ```no_run
/// # async fn f(qp: &mut rdma::aio::QueuePair<rdma::transport::Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut received = qp.next_received().await?;
/// received.status()?;
/// if let Some(message) = received.received() {
///     println!("{:?}", &message[..]);
///     // The same memory for the next message.
///     qp.post_recv(message.into_buffer())?;
/// }
/// # Ok(()) }
/// ```
#[must_use = "the memory is given up otherwise"]
pub struct Received {
    report: Published<'static, Report>,
}

impl Received {
    pub(super) fn new(report: Published<'static, Report>) -> Self {
        Self { report }
    }

    /// Whether the receive succeeded.
    ///
    /// # Errors
    ///
    /// The status with which the receive failed. The queue pair is then in the error state.
    pub fn status(&self) -> Result<(), WcError> {
        completion::status(&self.report.wc)
    }

    /// [`Opcode::Recv`], or [`Opcode::RecvWriteImm`] for the notice of a write.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        completion::opcode(&self.report.wc, self.report.info)
    }

    /// The number of bytes received, or written by the peer; 0 if the receive failed. For a
    /// datagram, the count includes the 40 bytes of the GRH. The device reports this number: check
    /// it before use as a length.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        completion::byte_len(&self.report.wc, self.report.info)
    }

    /// The immediate data of the message or write.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        completion::imm(&self.report.wc, self.report.info)
    }

    /// The completion entry, and the slot's information about the receive.
    pub(crate) fn parts(&self) -> (&ibv_wc, Info) {
        (&self.report.wc, self.report.info)
    }

    /// The next segment, without taking it.
    pub(crate) fn peek(&self) -> Option<&Segment> {
        self.report.memory.peek()
    }

    /// Whether no segment was taken.
    fn is_untouched(&self) -> bool {
        self.report.memory.is_untouched()
    }

    pub(crate) fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        self.report.memory.take_if(kind)
    }
}

takes!(Received);
receives_messages!(Received);
receives_datagrams!(Received);

debug_by_methods!(Received: status, opcode, byte_len);
