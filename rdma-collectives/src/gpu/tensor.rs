//! The memory of a tensor on a GPU.

use std::ops::Range;
use std::sync::Arc;

use rdma::{ExposedSlice, ProtectionDomain, RemoteAccess};
use rdma_cuda::{GpuBuffer, GpuRegion, GpuSlice, PinnedRegion, Preference};

use super::outgoing::Outgoing;
use super::{Engine, failed};
use crate::Error;
use crate::blocks::{Blocks, parts};
use crate::element::{Element, Reduction};
use crate::link::Slice;
use crate::place::TensorPlace;

/// Memory of a GPU, and what sends its messages.
#[derive(Debug)]
pub(crate) struct GpuTensor {
    all: GpuPart,
    /// The number of bytes; the memory may be larger.
    bytes: usize,
}

impl GpuTensor {
    pub(super) fn new(
        engine: &Arc<Engine>,
        pd: &ProtectionDomain,
        wanted: TensorPlace,
        bytes: usize,
    ) -> Result<Self, Error> {
        let slice = GpuBuffer::new(&engine.gpu, bytes.max(1)).map_err(failed)?.slice();
        let sender = Sender::new(pd, &slice, wanted)?;
        Ok(Self { all: GpuPart { engine: Arc::clone(engine), slice, sender: Some(sender) }, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Some of the bytes.
    pub(crate) fn part(&self, bytes: Range<usize>) -> Result<GpuPart, Error> {
        self.all.part(bytes)
    }

    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let part = self.part(at..at.saturating_add(bytes.len()))?;
        part.engine.stream.upload(&part.slice, bytes).map_err(failed)
    }

    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let part = self.part(at..at.saturating_add(bytes.len()))?;
        part.engine.stream.download(&part.slice, bytes).map_err(failed)
    }
}

/// What sends the messages of some memory of a GPU.
#[derive(Clone, Debug)]
enum Sender {
    /// The device, which reads the memory.
    Direct(Arc<GpuRegion>),
    /// Pinned host memory of the same size, of which a part belongs to each part of the memory.
    Staged { pinned: Arc<PinnedRegion>, mirror: ExposedSlice },
}

impl Sender {
    fn new(pd: &ProtectionDomain, memory: &GpuSlice<u8>, wanted: TensorPlace) -> Result<Self, Error> {
        if wanted == TensorPlace::Gpu {
            let (memory, none) = (Arc::clone(memory.memory()), RemoteAccess::empty());
            let region = GpuRegion::register(pd, memory, none, Preference::default()).map_err(failed)?;
            if region.path().is_direct() {
                return Ok(Self::Direct(Arc::new(region)));
            }
        }
        // A region has some right, which no rank uses: none is told of the mirror.
        let pinned = PinnedRegion::new(memory.gpu(), pd, memory.len(), RemoteAccess::READ).map_err(failed)?;
        Ok(Self::Staged { mirror: pinned.region().slice(..)?, pinned: Arc::new(pinned) })
    }

    /// The sender of some of the bytes.
    fn part(&self, bytes: Range<usize>) -> Result<Self, Error> {
        Ok(match self {
            Self::Direct(region) => Self::Direct(Arc::clone(region)),
            Self::Staged { pinned, mirror } => {
                Self::Staged { pinned: Arc::clone(pinned), mirror: mirror.slice(bytes)? }
            }
        })
    }
}

/// Some memory of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct GpuPart {
    engine: Arc<Engine>,
    slice: GpuSlice<u8>,
    /// `None` for a received piece, which is never sent.
    sender: Option<Sender>,
}

impl GpuPart {
    /// A received piece.
    pub(super) fn received(engine: &Arc<Engine>, slice: GpuSlice<u8>) -> Self {
        Self { engine: Arc::clone(engine), slice, sender: None }
    }

    /// Begins to send the bytes: as one message, or staged in pieces of at most `piece` bytes.
    pub(super) fn send(&self, piece: usize) -> Result<Vec<Outgoing>, Error> {
        let stream = &self.engine.stream;
        match self.sender.as_ref().ok_or_else(|| failed("a schedule sends a message that it received"))? {
            Sender::Direct(region) => {
                let written = stream.ready_later(self.slice.clone()).map_err(failed)?;
                Ok(vec![Outgoing::Direct(written, Arc::clone(region))])
            }
            Sender::Staged { pinned, mirror } => {
                let empty = (self.len() == 0).then_some(0..0);
                let pieces = empty.into_iter().chain(parts(0..self.len(), piece));
                let stage = |bytes: Range<usize>| {
                    let (slice, target) = (self.slice.range(bytes.clone()).map_err(failed)?, mirror.slice(bytes)?);
                    let copied = pinned.download(stream, &slice, &target).map_err(failed)?;
                    Ok(Outgoing::Staged(copied.ready(target)))
                };
                pieces.map(stage).collect()
            }
        }
    }
}

impl Slice for GpuPart {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn part(&self, bytes: Range<usize>) -> Result<Self, Error> {
        let slice = self.slice.range(bytes.clone()).map_err(failed)?;
        let sender = self.sender.as_ref().map(|sender| sender.part(bytes)).transpose()?;
        Ok(Self { engine: Arc::clone(&self.engine), slice, sender })
    }

    fn addresses(&self) -> Result<Range<u64>, Error> {
        let start = self.slice.address();
        Ok(start..start + self.slice.len() as u64)
    }

    fn reduce<T: Element>(&self, reduction: Reduction, operands: &[Self], _: &mut Blocks) -> Result<(), Error> {
        let operands: Vec<_> = operands.iter().map(|operand| operand.slice.clone()).collect();
        let Engine { reducer, stream, .. } = &*self.engine;
        reducer.reduce(stream, T::SCALAR, reduction.operation(), &self.slice, &operands).map_err(failed)
    }
}
