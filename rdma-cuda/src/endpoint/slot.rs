//! Slots: memory that the NIC and the GPU's copy engine access in turn. Those for sending are
//! pinned host memory; those for receiving are the GPU's if the path is direct.

use std::sync::Arc;

use rdma::{Buffer, ExposedSlice, ProtectionDomain};

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{GpuSlice, PinnedBuffer, PinnedMemory};
use crate::pending::Pending;
use crate::stream::Stream;

/// A slot for receiving that neither the NIC nor a copy uses.
#[derive(Debug)]
pub(super) enum Slot {
    Host(HostSlot),
    Gpu(GpuSlot),
}

impl Slot {
    /// The size in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(slot) => slot.buffer.len(),
            Self::Gpu(slot) => slot.slice.len(),
        }
    }
}

/// A slot of the GPU's memory.
#[derive(Debug)]
pub(super) struct GpuSlot {
    pub(super) segment: ExposedSlice<rdma::Gpu>,
    /// The memory that `segment` registers.
    pub(super) slice: GpuSlice<u8>,
}

impl GpuSlot {
    /// Begins a copy of the front of the slot, which is visible to the GPU.
    pub(super) fn empty(self, stream: &Stream, front: &GpuSlice<u8>, to: &GpuSlice<u8>) -> Result<Pending<Slot>> {
        stream.copy(to, front)?;
        Ok(Pending::new(Slot::Gpu(self), stream.record()?))
    }
}

/// A slot of pinned host memory that neither the NIC nor a copy uses.
#[derive(Debug)]
pub(super) struct HostSlot {
    pub(super) buffer: Buffer,
    /// The memory that `buffer` registers, to keep during a copy.
    pub(super) memory: Arc<PinnedMemory>,
}

impl HostSlot {
    pub(super) fn new(gpu: &Gpu, pd: &ProtectionDomain, size: usize) -> Result<Self> {
        let pinned = PinnedBuffer::<u8>::new(gpu, size)?;
        let memory = pinned.memory();
        Ok(Self { buffer: pd.register(pinned).map_err(|failed| failed.error)?, memory })
    }

    /// Begins a copy from the GPU to the front of the slot.
    pub(super) fn fill(self, stream: &Stream, from: &GpuSlice<u8>) -> Result<Pending<Self>> {
        self.check(from)?;
        let target = self.memory.start().as_ptr().cast();
        let event = stream.submit((from.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyDtoHAsync requires as many bytes on both sides until the copy is
            // done: `check` has compared them, and the stream keeps both. Nobody else accesses the
            // slot's bytes: `Pending` has the buffer.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target, from.address(), from.size(), stream) }
        })?;
        Ok(Pending::new(self, event))
    }

    /// Begins a copy of the front of the slot to the GPU.
    pub(super) fn empty(self, stream: &Stream, to: &GpuSlice<u8>) -> Result<Pending<Slot>> {
        self.check(to)?;
        let source = self.memory.start().as_ptr().cast();
        let event = stream.submit((to.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyHtoDAsync requires as many bytes on both sides until the copy is
            // done: `check` has compared them, and the stream keeps both. Nobody changes the slot's
            // bytes: `Pending` has the buffer.
            unsafe { driver.cuMemcpyHtoDAsync_v2(to.address(), source, to.size(), stream) }
        })?;
        Ok(Pending::new(Slot::Host(self), event))
    }

    fn check(&self, slice: &GpuSlice<u8>) -> Result<()> {
        let (from, to) = (slice.size(), self.buffer.len());
        if from <= to { Ok(()) } else { Err(Error::LengthMismatch { from, to }) }
    }
}
