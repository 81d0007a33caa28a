//! A shortcut: a filled receive queue.

use std::sync::Arc;

use super::InitializedQueuePair;
use super::chain::MAX_BATCH;
use super::transport::Transport;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::pd::ProtectionDomain;

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
            return Err(Error::new(Verb::PostRecv, ErrorKind::SharedReceives));
        }
        let count = u64::from(self.qp.recv.depth());
        let too_long = Error::new(Verb::Allocate, ErrorKind::TooLong);
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(len)).ok_or(too_long)?;
        let mut memory = ProtectionDomain { inner: Arc::clone(&self.qp.control.pd) }.allocate(bytes)?;
        for first in (0..count).step_by(MAX_BATCH as usize) {
            let mut batch = self.recv_batch();
            for token in first..count.min(first + u64::from(MAX_BATCH)) {
                batch.push(memory.split_to(len), token).map_err(|refused| refused.error())?;
            }
            batch.submit()?;
        }
        Ok(())
    }
}
