//! Why a NIC cannot access memory of a GPU: what host, GPU, NIC and memory say of themselves, and
//! the causes that follow.
//!
//! The kernel's answer to a refused registration is `EFAULT` or `EINVAL` for every cause. So the
//! facts are gathered after the failure, and [`Facts::causes`] is a pure function of them.

use std::fmt;
use std::fs;
use std::path::Path;

use rdma::ProtectionDomain;

use crate::attribute::DeviceAttribute;
use crate::driver::DriverVersion;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::memory::{MemoryType, PointerAttributes};

/// The files of which one exists if a peer memory module is loaded: `nvidia_peermem`, its forms in
/// MLNX_OFED, and the module before it.
const PEER_MEMORY: [&str; 4] = [
    "sys/module/nvidia_peermem/version",
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nv_peer_mem/version",
];

/// The devices through which a confidential guest asks for its attestation.
const CONFIDENTIAL: [&str; 2] = ["dev/tdx_guest", "dev/sev-guest"];

/// The first version of CUDA whose driver exports dma-bufs.
const FIRST_DMA_BUF: DriverVersion = DriverVersion(11_070);

/// The first version of Linux that registers dma-bufs.
const FIRST_LINUX: (u32, u32) = (5, 12);

/// Properties of the host that decide whether a NIC can access GPU memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The kernel's release, such as `6.12.0`.
    pub kernel: Option<String>,
    /// Whether a peer memory module (`nvidia_peermem`) is loaded.
    pub peer_memory: bool,
    /// Whether the GPU driver's kernel modules are the open ones; `None` if none are loaded.
    pub open_modules: Option<bool>,
    /// Whether this is a confidential virtual machine (TDX or SEV-SNP).
    pub is_confidential: bool,
}

impl HostFacts {
    /// The facts of the machine whose files are below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let modules = read("proc/driver/nvidia/version");
        Self {
            kernel: read("proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
            peer_memory: PEER_MEMORY.iter().any(|path| root.join(path).exists()),
            open_modules: modules.map(|version| version.contains("Open Kernel Module")),
            is_confidential: CONFIDENTIAL.iter().any(|path| root.join(path).exists()),
        }
    }

    /// Whether the kernel is known to be too old for dma-bufs.
    fn is_too_old(&self) -> bool {
        let mut numbers =
            self.kernel.iter().flat_map(|release| release.split(['.', '-'])).map_while(|n| n.parse().ok());
        matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) < FIRST_LINUX)
    }
}

/// Properties of a GPU and of its driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The product's name.
    pub name: String,
    /// The version of CUDA that the driver supports.
    pub driver: Option<DriverVersion>,
    /// Whether a NIC can access the GPU's memory; `None` if the driver does not know the question.
    pub rdma: Option<bool>,
    /// Whether the driver exports the GPU's memory as a dma-buf; `None` if it does not know the
    /// question.
    pub dma_buf: Option<bool>,
}

impl GpuFacts {
    /// Asks a GPU's driver.
    #[must_use]
    pub fn of(gpu: &Gpu) -> Self {
        let ask = |attribute| gpu.attribute(attribute).ok().map(|value| value != 0);
        Self {
            name: gpu.name().to_owned(),
            driver: Some(gpu.driver().version()),
            rdma: ask(DeviceAttribute::GPU_DIRECT_RDMA_SUPPORTED),
            dma_buf: ask(DeviceAttribute::DMA_BUF_SUPPORTED),
        }
    }
}

/// Properties of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicFacts {
    /// The device's name.
    pub name: String,
    /// Whether it is this project's software device.
    pub is_software: bool,
    /// Whether device, provider and kernel can register dma-bufs, or why not.
    pub dma_buf: Result<(), rdma::Error>,
}

impl NicFacts {
    /// Asks an open device.
    #[must_use]
    pub fn of(pd: &ProtectionDomain) -> Self {
        let context = pd.context();
        Self { name: context.name(), is_software: context.device().is_software(), dma_buf: pd.probe_dmabuf() }
    }
}

/// The kind of memory at an address, by the driver's pointer attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of a GPU, of `cuMemAlloc`, `cudaMalloc` or `cuMemCreate`.
    Device,
    /// Memory of a pool: of `cuMemAllocAsync`, or `cudaMallocAsync`.
    Pool,
    /// Managed memory, whose pages move between GPU and host.
    Managed,
    /// Host memory that CUDA has pinned.
    Host,
    /// Not memory of CUDA.
    Foreign,
}

impl MemoryKind {
    /// The kind that a driver's word says; it says nothing about memory that it does not know.
    #[must_use]
    pub fn of(attributes: Option<&PointerAttributes>) -> Self {
        match attributes {
            None => Self::Foreign,
            Some(PointerAttributes { is_managed: true, .. }) => Self::Managed,
            Some(PointerAttributes { is_pool: true, .. }) => Self::Pool,
            Some(PointerAttributes { memory_type: MemoryType::HOST, .. }) => Self::Host,
            Some(_) => Self::Device,
        }
    }
}

/// Properties of GPU memory, and the results of the attempts to register it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFacts {
    /// The kind of memory.
    pub kind: Option<MemoryKind>,
    /// Whether the driver says that a NIC can access this memory; `None` if it does not know the
    /// question.
    pub rdma: Option<bool>,
    /// Why the driver did not export the memory.
    pub export: Option<Error>,
    /// The size of the exported dma-buf, and the size that the registration needs.
    pub exported: Option<(u64, u64)>,
    /// Why the NIC did not register the dma-buf.
    pub dma_buf: Option<rdma::Error>,
    /// Why the NIC did not register the memory by its address.
    pub peer_memory: Option<rdma::Error>,
}

/// All that is known when a NIC is to access memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The host.
    pub host: HostFacts,
    /// The GPU.
    pub gpu: GpuFacts,
    /// The NIC.
    pub nic: NicFacts,
    /// The memory, if it is known which.
    pub memory: MemoryFacts,
}

impl Facts {
    /// Why there is no direct path: one cause if host, GPU or memory exclude both ways to register
    /// memory, else one for each way. Empty if nothing is known against a direct path.
    #[must_use]
    pub fn causes(&self) -> Vec<Cause> {
        if let Some(cause) = self.common_cause() {
            return vec![cause];
        }
        match (self.dma_buf_cause(), self.peer_memory_cause()) {
            (Some(dma_buf), Some(peer_memory)) if !self.nic.is_software => vec![dma_buf, peer_memory],
            _ => Vec::new(),
        }
    }

    /// The cause that excludes both ways to register memory.
    pub(crate) fn common_cause(&self) -> Option<Cause> {
        if self.nic.is_software {
            return self.software_cause();
        }
        let is_refused = self.memory.kind.is_some() && self.memory.rdma == Some(false);
        self.memory_cause().or_else(|| self.gpu_cause()).or(is_refused.then_some(Cause::NotCapable))
    }

    /// Memory that the GPU's driver cannot copy for the software device. It can copy the memory of
    /// pools and managed memory, and that of every GPU.
    fn software_cause(&self) -> Option<Cause> {
        match self.memory.kind {
            Some(MemoryKind::Host) => Some(Cause::HostMemory),
            Some(MemoryKind::Foreign) => Some(Cause::NotCuda),
            _ => None,
        }
    }

    /// Memory that no NIC can access.
    fn memory_cause(&self) -> Option<Cause> {
        match self.memory.kind? {
            MemoryKind::Managed => Some(Cause::Managed),
            MemoryKind::Host => Some(Cause::HostMemory),
            MemoryKind::Foreign => Some(Cause::NotCuda),
            // A later driver may allow pools: it then says so.
            MemoryKind::Pool if self.memory.rdma != Some(true) => Some(Cause::Pool),
            _ => None,
        }
    }

    /// A GPU whose memory no NIC can access.
    fn gpu_cause(&self) -> Option<Cause> {
        let GpuFacts { name, rdma, .. } = &self.gpu;
        (*rdma == Some(false)).then(|| match name.contains("GeForce") {
            true => Cause::GeForce,
            false => Cause::GpuWithoutRdma,
        })
    }

    /// Why memory cannot be registered by a dma-buf.
    pub(crate) fn dma_buf_cause(&self) -> Option<Cause> {
        let MemoryFacts { export, exported, dma_buf, .. } = &self.memory;
        if self.gpu.driver.is_some_and(|version| version < FIRST_DMA_BUF) {
            return Some(Cause::DriverTooOld);
        }
        if self.gpu.dma_buf == Some(false) {
            return Some(match self.host {
                HostFacts { is_confidential: true, .. } => Cause::Confidential,
                HostFacts { open_modules: Some(false), .. } => Cause::ClosedModules,
                _ => Cause::NoExport,
            });
        }
        if let Some(error) = export {
            return Some(Cause::ExportFailed(error.clone()));
        }
        if let Err(error) = self.nic.dma_buf {
            return Some(match self.host.is_too_old() {
                true => Cause::KernelTooOld,
                false => Cause::NicWithoutDmaBuf(error),
            });
        }
        match (*dma_buf, *exported) {
            (Some(_), Some((size, needed))) if size < needed => Some(Cause::BeyondExport { size, needed }),
            (Some(error), _) => Some(registration(error)),
            (None, _) => None,
        }
    }

    /// Why memory cannot be registered by its address.
    pub(crate) fn peer_memory_cause(&self) -> Option<Cause> {
        if !self.host.peer_memory {
            return Some(Cause::NoPeerMemory);
        }
        self.memory.peer_memory.map(registration)
    }
}

fn registration(error: rdma::Error) -> Cause {
    if error.kind() == rdma::ErrorKind::OutOfMemory { Cause::OutOfMemory(error) } else { Cause::Refused(error) }
}

/// Why a NIC cannot access memory of a GPU, in a clause; [`remedy`](Self::remedy) is the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The memory is of a pool.
    Pool,
    /// The memory is managed.
    Managed,
    /// The memory is the host's.
    HostMemory,
    /// The memory is not CUDA's.
    NotCuda,
    /// The driver says that no NIC can access this memory.
    NotCapable,
    /// The software device did not register the memory to be copied.
    NotCopied(Error),
    /// The GPU is a GeForce, for which the driver refuses RDMA.
    GeForce,
    /// The driver says that the GPU has no RDMA.
    GpuWithoutRdma,
    /// The driver is older than dma-bufs.
    DriverTooOld,
    /// The virtual machine is confidential.
    Confidential,
    /// The driver's kernel modules are not the open ones.
    ClosedModules,
    /// The driver exports no dma-bufs.
    NoExport,
    /// The driver did not export this memory.
    ExportFailed(Error),
    /// The kernel is older than the registration of dma-bufs.
    KernelTooOld,
    /// The NIC, or its provider, cannot register dma-bufs.
    NicWithoutDmaBuf(rdma::Error),
    /// The memory is longer than what the driver exported.
    BeyondExport {
        /// The size of the dma-buf.
        size: u64,
        /// The size that the registration needs.
        needed: u64,
    },
    /// No peer memory module is loaded.
    NoPeerMemory,
    /// The NIC has no space for the registration.
    OutOfMemory(rdma::Error),
    /// The registration failed for a reason that nothing explains.
    Refused(rdma::Error),
    /// The NIC's provider delivers short messages with the processor, which cannot write the
    /// memory.
    ShortMessages,
}

impl Cause {
    /// A remedy, in one line.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Pool => "allocate with GpuBuffer or cuMemAlloc, or stage",
            Self::Managed => "allocate with GpuBuffer or cuMemAlloc; managed pages move while a NIC would access them",
            Self::HostMemory => "register it as host memory",
            Self::NotCuda => "check the address; host memory is registered as such",
            Self::NotCapable => "allocate with GpuBuffer, which sets gpuDirectRDMACapable in cuMemCreate's properties",
            Self::NotCopied(_) => "register without RemoteAccess::ATOMIC, which soft0 lacks on a GPU, or use a NIC",
            Self::GeForce | Self::GpuWithoutRdma => "use a data-centre or professional GPU, or stage",
            Self::DriverTooOld => "update NVIDIA's driver to one for CUDA 11.7 or later, or load nvidia-peermem",
            Self::Confidential => "stage: memory of a confidential GPU does not leave it unencrypted",
            Self::ClosedModules => "install the open kernel modules (nvidia-open), or load nvidia-peermem",
            Self::NoExport => "check that the kernel has CONFIG_DMA_SHARED_BUFFER, or load nvidia-peermem",
            Self::ExportFailed(_) => "check that the whole range is mapped, from one GPU and with the same properties",
            Self::KernelTooOld => "update to Linux 5.12 or later, or load nvidia-peermem",
            Self::NicWithoutDmaBuf(_) => "use a NIC and an rdma-core that can (mlx5, efa, irdma, bnxt_re, mana, ionic)",
            Self::BeyondExport { .. } => "register each mapping of the range alone",
            Self::NoPeerMemory => "run `modprobe nvidia-peermem` as root",
            Self::OutOfMemory(_) => "register less, raise the memlock limit, or set the IOMMU to pass-through",
            Self::Refused(_) => "see the kernel's log (dmesg) for what the NIC's driver says",
            Self::ShortMessages => "on mlx5, set MLX5_SCATTER_TO_CQE=0",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool => write!(f, "memory of a pool (cuMemAllocAsync) cannot be registered"),
            Self::Managed => write!(f, "managed memory cannot be registered"),
            Self::HostMemory => write!(f, "the memory is the host's, not a GPU's"),
            Self::NotCuda => write!(f, "the memory is not CUDA's"),
            Self::NotCapable => write!(f, "the driver says that no NIC can access this memory"),
            Self::NotCopied(error) => write!(f, "the software device cannot have the memory copied: {error}"),
            Self::GeForce => write!(f, "the driver refuses RDMA for GeForce GPUs"),
            Self::GpuWithoutRdma => write!(f, "the driver says that this GPU has no RDMA"),
            Self::DriverTooOld => write!(f, "the GPU's driver is too old for dma-bufs"),
            Self::Confidential => write!(f, "confidential computing forbids the export of GPU memory"),
            Self::ClosedModules => write!(f, "the GPU driver's closed kernel modules export no dma-bufs"),
            Self::NoExport => write!(f, "the GPU's driver exports no dma-bufs"),
            Self::ExportFailed(error) => write!(f, "the GPU's driver does not export the memory: {error}"),
            Self::KernelTooOld => write!(f, "the kernel is too old to register dma-bufs"),
            Self::NicWithoutDmaBuf(error) => write!(f, "the NIC cannot register dma-bufs: {error}"),
            Self::BeyondExport { size, needed } => {
                write!(f, "the registration needs {needed} bytes, but the driver exported {size}")
            }
            Self::NoPeerMemory => write!(f, "no peer memory module (nvidia-peermem) is loaded"),
            Self::OutOfMemory(error) => write!(f, "the NIC cannot map that much: {error}"),
            Self::Refused(error) => write!(f, "the registration failed: {error}"),
            Self::ShortMessages => write!(f, "the NIC's provider delivers short messages with the processor"),
        }
    }
}

#[cfg(test)]
mod tests;
