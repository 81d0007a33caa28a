//! Tensors in the memory of GPUs: reductions are done by the GPU, and messages are staged in pinned
//! host memory, from which and to which the ranks write.

mod links;
mod tensor;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rdma::{ExposedSlice, ProtectionDomain, RemoteAccess};
use rdma_cuda::{
    Facts, Gpu, GpuBuffer, GpuFacts, GpuSlice, HostFacts, MemoryFacts, NicFacts, PinnedRegion, Policy, Preference,
    Reducer, Stream, Topology, Way,
};

use self::links::GpuLinks;
pub(super) use self::tensor::{GpuPart, GpuTensor};
use super::blocks::Blocks;
use super::communicator::TensorPlace;
use super::element::{Element, Reduction};
use super::execute::{Execution, Memory, Traffic};
use super::step::Schedule;
use super::streams::StreamLinks;
use crate::Failure;

/// A failure of a GPU.
fn failed(error: impl Display) -> Failure {
    Failure::new(format!("GPU memory: {error}"))
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
    /// The slots for pieces from the other ranks.
    slots: PinnedRegion,
    /// Memory of the GPU for a piece of each rank.
    windows: Vec<GpuSlice<u8>>,
    /// Memory for schedules; grows as needed.
    scratch: GpuTensor,
}

impl GpuMemory {
    /// Chooses one of the host's GPUs for the rank with a position among those of its host, and
    /// allocates slots of `slots` bytes for pieces of `piece` bytes from each of `world` ranks.
    pub(super) fn new(
        pd: &ProtectionDomain,
        position: usize,
        world: usize,
        slots: usize,
        piece: usize,
    ) -> Result<Self, Failure> {
        let gpus = Gpu::all().map_err(|error| Failure::new(format!("{error}; --memory host needs no GPU")))?;
        let gpu = gpus.get(position % gpus.len().max(1)).ok_or_else(|| failed("there is no GPU"))?.clone();
        let stream = Stream::new(&gpu).map_err(failed)?;
        let reducer = Reducer::new(&gpu).map_err(failed)?;
        let slots = PinnedRegion::new(&gpu, pd, slots, RemoteAccess::WRITE).map_err(failed)?;
        let window = |_| Ok(GpuBuffer::new(&gpu, piece).map_err(failed)?.slice());
        let windows = (0..world).map(window).collect::<Result<_, Failure>>()?;
        let engine = Arc::new(Engine { gpu, stream, reducer });
        let scratch = GpuTensor::new(&engine, pd, 0)?;
        Ok(Self { engine, pd: pd.clone(), slots, windows, scratch })
    }

    /// The GPU's name and address.
    pub(super) fn name(&self) -> String {
        self.engine.gpu.to_string()
    }

    /// The slots for pieces from the other ranks.
    pub(super) fn slots(&self) -> Result<ExposedSlice, Failure> {
        Ok(self.slots.region().slice(..)?)
    }

    /// Why messages are staged in host memory, if that was not asked for.
    pub(super) fn why_staged(&self, wanted: TensorPlace) -> Result<String, Failure> {
        if wanted == TensorPlace::GpuStaged {
            return Ok(String::new());
        }
        let preference = Preference::default().with_environment().map_err(failed)?;
        let (gpu, nic) = (&self.engine.gpu, NicFacts::of(&self.pd));
        let distance = Topology::of_this_machine().distance(gpu.pci_id(), &nic.name);
        let (host, memory) = (HostFacts::below(Path::new("/")), MemoryFacts::default());
        let why = match preference.plan(&Facts { host, gpu: GpuFacts::of(gpu), nic, memory }, distance) {
            Way::Staged(reason) => reason.to_string(),
            _ => "the collectives stage all messages of GPUs".to_owned(),
        };
        if preference.policy == Policy::RequireDirect {
            return Err(failed(format!("no direct path, which RDMA_CUDA_PATH asks for: {why}")));
        }
        Ok(why)
    }

    /// Allocates memory for a tensor of `bytes` bytes.
    pub(super) fn allocate(&self, bytes: usize) -> Result<GpuTensor, Failure> {
        GpuTensor::new(&self.engine, &self.pd, bytes)
    }

    /// Runs this rank's part of a collective.
    pub(super) fn run<T: Element>(
        &mut self,
        streams: StreamLinks<'_>,
        blocks: &mut Blocks,
        schedule: &Schedule,
        [input, output]: [GpuPart; 2],
        reduction: Reduction,
    ) -> Result<Traffic, Failure> {
        let bytes = schedule.scratch * size_of::<T>();
        if bytes > self.scratch.len() {
            self.scratch = self.allocate(bytes)?;
        }
        let memory = Memory { input, output, scratch: self.scratch.part(0..bytes)? };
        let mut links = GpuLinks::new(self, streams);
        let traffic = Execution::new(&mut links, blocks, &memory, reduction).run::<T>(schedule)?;
        self.engine.stream.synchronize().map_err(failed)?;
        Ok(traffic)
    }
}
