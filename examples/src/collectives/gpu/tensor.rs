//! The memory of a tensor on a GPU.

use std::ops::Range;
use std::sync::Arc;

use rdma::{ExposedSlice, ProtectionDomain, RemoteAccess};
use rdma_cuda::{Event, GpuBuffer, GpuSlice, PinnedRegion};

use super::{Engine, failed};
use crate::Failure;
use crate::collectives::blocks::Blocks;
use crate::collectives::element::{Element, Reduction};
use crate::collectives::link::Slice;

/// Memory of a GPU, and as much pinned host memory, from which its messages are sent.
#[derive(Debug)]
pub(crate) struct GpuTensor {
    all: GpuPart,
    /// The number of bytes; the memory may be larger.
    bytes: usize,
}

impl GpuTensor {
    pub(super) fn new(engine: &Arc<Engine>, pd: &ProtectionDomain, bytes: usize) -> Result<Self, Failure> {
        let slice = GpuBuffer::new(&engine.gpu, bytes.max(1)).map_err(failed)?.slice();
        // A region has some right, which no rank uses: none is told of the mirror.
        let pinned = PinnedRegion::new(&engine.gpu, pd, bytes.max(1), RemoteAccess::READ).map_err(failed)?;
        let mirror = Mirror { slice: pinned.region().slice(..)?, pinned: Arc::new(pinned) };
        Ok(Self { all: GpuPart { engine: Arc::clone(engine), slice, mirror: Some(mirror) }, bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Some of the bytes.
    pub(crate) fn part(&self, bytes: Range<usize>) -> Result<GpuPart, Failure> {
        self.all.part(bytes)
    }

    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let part = self.part(at..at + bytes.len())?;
        part.engine.stream.upload(&part.slice, bytes).map_err(failed)
    }

    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        let part = self.part(at..at + bytes.len())?;
        part.engine.stream.download(&part.slice, bytes).map_err(failed)
    }
}

/// Host memory for the messages of some memory of a GPU.
#[derive(Clone, Debug)]
struct Mirror {
    pinned: Arc<PinnedRegion>,
    slice: ExposedSlice,
}

/// Some memory of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct GpuPart {
    engine: Arc<Engine>,
    slice: GpuSlice<u8>,
    /// `None` for a received piece, which is never sent.
    mirror: Option<Mirror>,
}

impl GpuPart {
    /// A received piece.
    pub(super) fn received(engine: &Arc<Engine>, slice: GpuSlice<u8>) -> Self {
        Self { engine: Arc::clone(engine), slice, mirror: None }
    }

    /// Begins to copy the bytes to the host, where they can be sent from after the event.
    pub(super) fn stage(&self) -> Result<(Event, ExposedSlice), Failure> {
        let mirror = self.mirror.as_ref().ok_or_else(|| failed("a schedule sends a message that it received"))?;
        let copied = mirror.pinned.download(&self.engine.stream, &self.slice, &mirror.slice).map_err(failed)?;
        Ok((copied, mirror.slice.clone()))
    }
}

impl Slice for GpuPart {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn part(&self, bytes: Range<usize>) -> Result<Self, Failure> {
        let slice = self.slice.range(bytes.clone()).map_err(failed)?;
        let part = |Mirror { pinned, slice }: &Mirror| {
            Ok::<_, Failure>(Mirror { pinned: Arc::clone(pinned), slice: slice.slice(bytes)? })
        };
        let mirror = self.mirror.as_ref().map(part).transpose()?;
        Ok(Self { engine: Arc::clone(&self.engine), slice, mirror })
    }

    fn addresses(&self) -> Result<Range<u64>, Failure> {
        let start = self.slice.address();
        Ok(start..start + self.slice.len() as u64)
    }

    fn reduce<T: Element>(&self, reduction: Reduction, operands: &[Self], _: &mut Blocks) -> Result<(), Failure> {
        let operands: Vec<_> = operands.iter().map(|operand| operand.slice.clone()).collect();
        let Engine { reducer, stream, .. } = &*self.engine;
        reducer.reduce(stream, T::SCALAR, reduction.operation(), &self.slice, &operands).map_err(failed)
    }
}
