//! Tensors in the memory of GPUs, which do the reductions. Where the device can access a GPU's
//! memory, the ranks write messages from there and to there; elsewhere messages are staged in
//! pinned host memory.

// Files: `tensor`, `links`, `slots` (memory that other ranks write to), `outgoing` (messages that
// wait for the GPU's work).

mod links;
mod outgoing;
mod slots;
mod tensor;

use std::fmt::Display;
use std::sync::Arc;

use rdma::{ProtectionDomain, RemoteSlice};
use rdma_cuda::{Gpu, Reason, Reducer, Stream, Way};

use self::links::GpuLinks;
use self::slots::Slots;
pub(super) use self::tensor::{GpuPart, GpuTensor};
use super::blocks::Blocks;
use super::element::{Element, Reduction};
use super::execute::{Execution, Memory, Traffic};
use super::fabric::Nic;
use super::streams::{Room, StreamLinks};
use crate::Error;
use crate::place::RankGpu;
use crate::place::TensorPlace;
use crate::schedule::step::Schedule;

/// The GPU of the rank with a position among those of its host.
///
/// # Errors
/// If there is no GPU.
pub fn gpu_at(position: usize) -> Result<Gpu, Error> {
    let gpus = Gpu::all().map_err(|error| Error::new(format!("{error}; tensors in host memory need no GPU")))?;
    Ok(gpus.get(position % gpus.len().max(1)).ok_or_else(|| failed("there is no GPU"))?.clone())
}

/// A failure of a GPU.
fn failed(error: impl Display) -> Error {
    Error::new(format!("GPU memory: {error}"))
}

/// A GPU with a queue of work, and the kernels for reductions.
#[derive(Debug)]
struct Engine {
    gpu: Gpu,
    stream: Stream,
    reducer: Reducer,
}

/// The GPU of a rank, and the memory through which its messages go.
#[derive(Debug)]
pub(super) struct GpuMemory {
    engine: Arc<Engine>,
    pd: ProtectionDomain,
    wanted: TensorPlace,
    /// The slots for pieces from the other ranks.
    slots: Slots,
    /// Memory for schedules; grows as needed.
    scratch: GpuTensor,
}

impl GpuMemory {
    /// Chooses one of the host's GPUs for the rank with a position among those of its host, and
    /// allocates the slots for messages that come by a device.
    pub(super) fn new(nic: Nic<'_>, position: usize, room: Room, wanted: TensorPlace) -> Result<Self, Error> {
        let gpu = gpu_at(position)?;
        let stream = Stream::new(&gpu).map_err(failed)?;
        let reducer = Reducer::new(&gpu).map_err(failed)?;
        let engine = Arc::new(Engine { gpu, stream, reducer });
        let slots = Slots::new(&engine, nic, room, wanted)?;
        let (pd, scratch) = (nic.pd.clone(), GpuTensor::new(&engine, nic.pd, wanted, 0)?);
        Ok(Self { engine, pd, wanted, slots, scratch })
    }

    /// The GPU, and the way of the messages.
    pub(super) fn describe(&self) -> RankGpu {
        let way = self.slots.way();
        let why_staged = match &way {
            Way::Staged(reason) if *reason != Reason::Asked => Some(reason.to_string()),
            _ => None,
        };
        RankGpu { name: self.engine.gpu.to_string(), way: way.to_string(), why_staged }
    }

    /// The slots for pieces from the other ranks.
    pub(super) fn slots(&self) -> Result<RemoteSlice, Error> {
        self.slots.remote()
    }

    /// Allocates memory for a tensor of `bytes` bytes.
    pub(super) fn allocate(&self, bytes: usize) -> Result<GpuTensor, Error> {
        GpuTensor::new(&self.engine, &self.pd, self.wanted, bytes)
    }

    /// Runs this rank's part of a collective.
    pub(super) fn run<T: Element>(
        &mut self,
        streams: StreamLinks<'_>,
        blocks: &mut Blocks,
        schedule: &Schedule,
        [input, output]: [GpuPart; 2],
        reduction: Reduction,
    ) -> Result<Traffic, Error> {
        let bytes = schedule.scratch.saturating_mul(size_of::<T>());
        if bytes > self.scratch.len() {
            self.scratch = self.allocate(bytes)?;
        }
        let memory = Memory { input, output, scratch: self.scratch.part(0..bytes)? };
        let mut links = GpuLinks::new(&self.engine, &mut self.slots, streams);
        let traffic = Execution::new(&mut links, blocks, &memory, reduction).run::<T>(schedule)?;
        links.finish()?;
        Ok(traffic)
    }
}
