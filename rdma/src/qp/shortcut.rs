//! Shortcuts: a queue pair with its own completion queue and poller, and a filled receive queue.

use std::sync::Arc;

use super::{InitializedQueuePair, PreparedQueuePair, QpBuilder, Transport};
use crate::cq::Poller;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::pd::ProtectionDomain;

impl<T: Transport> QpBuilder<T> {
    /// Creates the queue pair together with its own completion queue and a poller for it. The
    /// completion queue has space for all requests and a channel to sleep on.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build) and [`CqBuilder::build`](crate::CqBuilder::build).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let opened = rdma::open(&rdma::DeviceSelector::Any)?;
    /// use rdma::InitOptions;
    ///
    /// let pd = opened.context.alloc_pd()?;
    /// let (prepared, mut poller) = pd.queue_pair().max_recv_wr(32).build_with_poller()?;
    /// let mut qp = prepared.init(&InitOptions::new().port(opened.port))?;
    /// qp.post_recvs(4096)?;
    /// // Exchange `qp.endpoint()` with the peer, connect, and wait for messages.
    /// assert!(poller.poll()?.is_none());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn build_with_poller(self) -> Result<(PreparedQueuePair<T>, Poller)> {
        let depth = self.max_send_wr.max(1).checked_add(self.receive_entries());
        let depth = depth.ok_or(Error::new(Operation::CreateQp, ErrorKind::InvalidInput))?;
        let cq = self.pd.context().cq_builder(depth).events().build()?;
        Ok((self.cq(&cq).build()?, cq.poller()))
    }
}

impl<T: Transport> InitializedQueuePair<T> {
    /// Fills the receive queue with buffers of `len` bytes, all from one new region, with tokens
    /// from 0 on.
    ///
    /// For datagrams, the first 40 bytes of each buffer receive the GRH.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` or another error of allocating the region; any error that the provider reports
    /// for a post. Buffers posted before the error stay posted. `SharedReceives` if the queue pair
    /// takes its receives from a shared receive queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recvs(&mut self, len: usize) -> Result<()> {
        if self.qp.recv.depth() == 0 {
            return Err(Error::new(Operation::PostRecv, ErrorKind::SharedReceives));
        }
        let count = u64::from(self.qp.recv.depth());
        let too_long = Error::new(Operation::Allocate, ErrorKind::TooLong);
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(len)).ok_or(too_long)?;
        let mut memory = ProtectionDomain { inner: Arc::clone(&self.qp.control.pd) }.allocate(bytes)?;
        for token in 0..count {
            let buffer = memory.split_to(len);
            self.post_recv(buffer, token).map_err(|refused| refused.error())?;
        }
        Ok(())
    }
}
