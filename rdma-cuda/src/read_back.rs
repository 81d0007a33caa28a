//! Reads by the NIC itself, for GPUs that need one to see what the NIC has written.

use std::fmt;

use bytemuck::Pod;
use rdma::transport::Rc;
use rdma::{
    Buffer, ConnectOptions, InitOptions, InitializedQueuePair, Poller, ProtectionDomain, QueuePair, RemoteAccess, op,
};

use crate::memory::GpuSlice;
use crate::region::{GpuRegion, RegionError};

/// A connection of a NIC to itself, by which it reads a byte of a GPU's memory into host memory.
///
/// PCIe delivers the byte after all that the NIC has written before, so writes that have completed
/// are then visible to the GPU. [`Landed::visible_by`](crate::Landed::visible_by) takes the read if
/// the GPU needs it ([`FlushMethod::ReadBack`](crate::FlushMethod::ReadBack)).
///
/// # Examples
///
/// ```no_run
/// use rdma_cuda::{GpuRegion, GpuSlice, Landed, ReadBack, RegionError};
///
/// /// Makes a slice that a receive has filled visible to kernels.
/// fn finish(region: &GpuRegion, slice: GpuSlice<f32>, back: &mut ReadBack) -> Result<GpuSlice<f32>, RegionError> {
///     let visible = Landed::new(slice).visible_by(|slice| back.read(region, slice))?;
///     Ok(visible.into_inner())
/// }
/// ```
pub struct ReadBack {
    qp: QueuePair<Rc>,
    /// The side that answers the reads.
    _responder: QueuePair<Rc>,
    poller: Poller,
    /// `None` if a read failed.
    sink: Option<Buffer>,
}

impl ReadBack {
    /// Connects a port of a NIC to itself.
    ///
    /// # Errors
    ///
    /// `NotSupported` on iWARP, where no program connects queue pairs itself; errors of the device.
    pub fn new(pd: &ProtectionDomain, port: u8) -> rdma::Result<Self> {
        Self::with_options(pd, InitOptions::new().port(port))
    }

    /// Connects the port of `options` to itself.
    pub(crate) fn with_options(pd: &ProtectionDomain, options: InitOptions) -> rdma::Result<Self> {
        let cq = pd.context().create_cq(4)?;
        let options = options.remote_access(RemoteAccess::READ);
        let make = || -> rdma::Result<InitializedQueuePair<Rc>> {
            let prepared = QueuePair::builder(pd).cq(&cq).max_send_wr(1).max_recv_wr(1).build()?;
            Ok(prepared.init(&options)?)
        };
        let (requester, responder) = (make()?, make()?);
        let (to_requester, to_responder) = (requester.endpoint(), responder.endpoint());
        let qp = requester.connect(&to_responder, &ConnectOptions::new())?;
        let responder = responder.connect(&to_requester, &ConnectOptions::new())?;
        Ok(Self { qp, _responder: responder, poller: cq.poller(), sink: Some(pd.allocate(1)?) })
    }

    /// Reads the first byte of a slice, and waits until the NIC has read it.
    ///
    /// # Errors
    ///
    /// [`RegionError::NotReadable`] if the region lacks [`RemoteAccess::READ`](rdma::RemoteAccess);
    /// [`RegionError::ReadBack`], also for all reads after a failed one; errors of
    /// [`GpuRegion::remote`].
    pub fn read<T: Pod>(&mut self, region: &GpuRegion, slice: &GpuSlice<T>) -> Result<(), RegionError> {
        let remote = region.readable(slice)?;
        if remote.is_empty() {
            return Ok(());
        }
        let first = remote.slice(..1).map_err(|_| RegionError::NotInRegion)?;
        let sink = self.sink.take().ok_or(RegionError::ReadBack)?;
        self.qp.post_send(op::read(sink, first)).map_err(rdma::Error::from)?;
        let mut completion = self.poller.wait(None)?.ok_or(RegionError::ReadBack)?;
        let (status, sink) = (completion.status(), completion.take_buffer());
        status.map_err(|_| RegionError::ReadBack)?;
        self.sink = sink;
        Ok(())
    }
}

impl fmt::Debug for ReadBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBack").field("qpn", &self.qp.qpn()).finish_non_exhaustive()
    }
}
