//! Slots: pinned host memory that the NIC and the GPU's copy engine access in turn.

use std::sync::Arc;

use rdma::{Buffer, ProtectionDomain};

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{GpuSlice, PinnedBuffer, PinnedMemory};
use crate::pending::Pending;
use crate::stream::Stream;

/// A slot that neither the NIC nor a copy uses.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) buffer: Buffer,
    /// The memory that `buffer` registers, to keep during a copy.
    pub(super) memory: Arc<PinnedMemory>,
}

impl Slot {
    pub(super) fn new(gpu: &Gpu, pd: &ProtectionDomain, size: usize) -> Result<Self> {
        let pinned = PinnedBuffer::<u8>::new(gpu, size)?;
        let memory = pinned.memory();
        Ok(Self { buffer: pd.register(pinned)?, memory })
    }

    /// Begins a copy from the GPU to the front of the slot.
    pub(super) fn fill(self, stream: &Stream, from: &GpuSlice<u8>) -> Result<Pending<Self>> {
        self.check(from)?;
        let target = self.memory.start().as_ptr().cast();
        let event = stream.submit((from.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyDtoHAsync wants as many bytes on both sides until the copy is done:
            // `check` has compared them, and the stream keeps both. Nobody else accesses the slot's
            // bytes: `Pending` has the buffer.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target, from.address(), from.size(), stream) }
        })?;
        Ok(Pending::new(self, event))
    }

    /// Begins a copy of the front of the slot to the GPU.
    pub(super) fn empty(self, stream: &Stream, to: &GpuSlice<u8>) -> Result<Pending<Self>> {
        self.check(to)?;
        let source = self.memory.start().as_ptr().cast();
        let event = stream.submit((to.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyHtoDAsync wants as many bytes on both sides until the copy is done:
            // `check` has compared them, and the stream keeps both. Nobody changes the slot's
            // bytes: `Pending` has the buffer.
            unsafe { driver.cuMemcpyHtoDAsync_v2(to.address(), source, to.size(), stream) }
        })?;
        Ok(Pending::new(self, event))
    }

    fn check(&self, slice: &GpuSlice<u8>) -> Result<()> {
        let (from, to) = (slice.size(), self.buffer.len());
        if from <= to { Ok(()) } else { Err(Error::LengthMismatch { from, to }) }
    }
}
