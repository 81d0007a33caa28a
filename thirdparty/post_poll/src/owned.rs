//! Two connected queue pairs within one process, through `rdma`'s owned interface: a buffer goes
//! into a request and comes back with its completion.

use std::io;

use pingpong::LEN;
use rdma::op;
use rdma::{Buffer, ExposedRegion, Poller, RemoteAccess, RemoteSlice};
use rdma_benches::device::{self, Prepared};

/// A queue pair with its buffers.
pub(crate) struct End {
    end: device::End,
    poller: Poller,
    /// Absent while a request has it, as `incoming` is.
    outgoing: Option<Buffer>,
    incoming: Option<Buffer>,
    exposed: ExposedRegion,
}

/// Creates two sides that are connected with each other.
///
/// # Errors
///
/// The device's error, or soft0 is not that of `soft-rdma`.
pub(crate) fn connect() -> io::Result<(End, End)> {
    let opened = device::open()?;
    if opened.context.device().is_software() {
        return Err(io::Error::other("the system's libibverbs has no soft0: run this program by `soft-rdma`"));
    }
    let (one, other) = (Prepared::new(&opened)?, Prepared::new(&opened)?);
    let (to_one, to_other) = (one.qp.endpoint(), other.qp.endpoint());
    Ok((End::new(one.connect(&to_other)?)?, End::new(other.connect(&to_one)?)?))
}

impl End {
    fn new(end: device::End) -> io::Result<Self> {
        let (outgoing, incoming) = (Some(end.pd.allocate(LEN)?), Some(end.pd.allocate(LEN)?));
        let exposed = end.pd.allocate_exposed(LEN, RemoteAccess::WRITE)?;
        Ok(Self { poller: end.cq.poller(), end, outgoing, incoming, exposed })
    }

    /// The memory that the other side writes to.
    ///
    /// # Errors
    ///
    /// The region cannot be named.
    pub(crate) fn exposed(&self) -> io::Result<RemoteSlice> {
        Ok(self.exposed.remote(..)?)
    }

    /// Writes the outgoing buffer to the other side's memory.
    ///
    /// # Errors
    ///
    /// The device's error, or a completion without success.
    #[inline]
    pub(crate) fn write(&mut self, to: RemoteSlice) -> io::Result<()> {
        self.end.qp.post_send(op::write(self.outgoing.take().ok_or_else(lost)?, to))?;
        self.outgoing = Some(poll(&mut self.poller)?);
        Ok(())
    }
}

impl pingpong::End for End {
    #[inline]
    fn send(&mut self, to: &mut Self) -> io::Result<()> {
        to.end.qp.post_recv(to.incoming.take().ok_or_else(lost)?, 0)?;
        self.end.qp.post_send(op::send(self.outgoing.take().ok_or_else(lost)?))?;
        self.outgoing = Some(poll(&mut self.poller)?);
        to.incoming = Some(poll(&mut to.poller)?);
        Ok(())
    }

    fn outgoing(&mut self) -> &mut [u8] {
        self.outgoing.as_deref_mut().unwrap_or_default()
    }

    fn incoming(&self) -> &[u8] {
        self.incoming.as_deref().unwrap_or_default()
    }
}

// Part of the loop that is measured, in each of the ways.
#[inline(always)]
fn poll(poller: &mut Poller) -> io::Result<Buffer> {
    loop {
        if let Some(mut completion) = poller.poll()? {
            completion.status().map_err(io::Error::other)?;
            return completion.take_buffer().ok_or_else(lost);
        }
    }
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("the buffer did not come back")
}
