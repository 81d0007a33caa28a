//! Regions: GPU memory that a NIC accesses, or the reason why it cannot.
//!
//! A region is an `ExposedRegion<Gpu>` whatever its rights: no reference into it exists, so there
//! is nothing to lend. The type keeps the processor from it: contents, atomics and inline sends
//! exist for host memory alone. The requested range is exported, rounded to pages, and registered
//! with its exact length.
//!
//! # Safety
//!
//! 1. Memory is asked what it is before it is exported, because drivers crash on the export of some
//!    kinds of memory.
//! 2. A region holds the memory's owner until the NIC has let go of it: `rdma` keeps the owner that
//!    was registered, also if deregistration fails.

mod copier;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::Pod;
use rdma::{
    CopierThreads, ErrorKind, ExposedRegion, ExposedSlice, Failed, Memory, MemoryOwner, ProtectionDomain, RemoteAccess,
};
use rdma::{RemoteSlice, RevokeError, SinkSlice};

use crate::detect::{Cause, Facts, GpuFacts, HostFacts, MemoryFacts, MemoryKind, NicFacts};
use crate::error::Error;
use crate::memory::{DeviceMemory, DmaBuf, GpuSlice, PointerAttributes, SyncMemops};
use crate::order::{Landed, Ready};
use crate::path::{InvalidVariable, Path, Preference, Reason, Way, listed};
use crate::topology::Topology;

/// Memory of a GPU for a NIC: registered, or to be staged.
///
/// [`path`](Self::path) says which, and why. The region keeps the memory; copies and kernels use it
/// meanwhile.
///
/// # Examples
///
/// ```no_run
/// use rdma::RemoteAccess;
/// use rdma_cuda::{Gpu, GpuBuffer, GpuRegion, Preference, Stream};
///
/// # fn f(pd: rdma::ProtectionDomain, mut qp: rdma::QueuePair<rdma::transport::Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Gpu::new(0)?;
/// let buffer = GpuBuffer::<f32>::new(&gpu, 1 << 20)?;
/// let region = GpuRegion::register(&pd, buffer.memory(), RemoteAccess::empty(), Preference::default())?;
/// println!("{}", region.path());
///
/// // Work on the stream fills the buffer; the NIC sends it once the work is done.
/// let stream = Stream::new(&gpu)?;
/// let ready = stream.ready(buffer.slice())?;
/// qp.post_send(rdma::op::send(region.source(&ready)?))?;
/// # Ok(()) }
/// ```
pub struct GpuRegion {
    /// `None` if the memory is staged.
    region: Option<ExposedRegion<rdma::Gpu>>,
    /// Kept for the GPU's next region.
    copier: Option<Arc<CopierThreads>>,
    memory: Arc<dyn DeviceMemory>,
    path: Path,
    sync_memops: SyncMemops,
}

impl GpuRegion {
    /// Registers memory of a GPU with a NIC, by a dma-buf or else by its address; with the software
    /// device, by copies of the GPU's driver.
    ///
    /// [`RDMA_CUDA_PATH` and `RDMA_CUDA_LEVEL`](Preference::with_environment) override the
    /// preference. Under [`Policy::PreferDirect`](crate::Policy::PreferDirect), memory without a
    /// direct path becomes a staged region, with a warning. Peers cannot access staged memory, so
    /// with rights for peers it is an error.
    ///
    /// # Errors
    ///
    /// [`RegionError::NoDirectPath`] with the causes, [`RegionError::StagedForPeers`],
    /// [`RegionError::Variable`].
    pub fn register(
        pd: &ProtectionDomain,
        memory: Arc<dyn DeviceMemory>,
        access: RemoteAccess,
        preference: Preference,
    ) -> Result<Self, RegionError> {
        let host = HostFacts::below(path::Path::new("/"));
        Self::register_by(pd, host, memory, access, preference.with_environment()?)
    }

    fn register_by(
        registrar: &impl Registrar,
        host: HostFacts,
        memory: Arc<dyn DeviceMemory>,
        access: RemoteAccess,
        preference: Preference,
    ) -> Result<Self, RegionError> {
        let gpu = memory.gpu();
        let nic = registrar.nic();
        let distance = Topology::of_this_machine().distance(gpu.pci_id(), &nic.name);
        let (pci_id, name, flush) = (gpu.pci_id().to_owned(), nic.name.clone(), gpu.flush_method());
        let facts = Facts { host, gpu: GpuFacts::of(gpu), nic, memory: MemoryFacts::default() };
        let (direct, way) = match preference.reason_to_stage(distance) {
            Some(reason) => (None, Way::Staged(reason)),
            None => match register_directly(registrar, facts, &memory, access) {
                Ok((direct, way)) => (Some(direct), way),
                Err(causes) if preference.policy == crate::Policy::RequireDirect => {
                    return Err(RegionError::NoDirectPath { causes });
                }
                Err(causes) => (None, Way::Staged(Reason::NotPossible(causes))),
            },
        };
        let path = Path { way, gpu: pci_id, nic: name, distance, flush };
        match &path.way {
            Way::Staged(reason) if !access.is_empty() => {
                return Err(RegionError::StagedForPeers { reason: reason.clone() });
            }
            Way::Staged(Reason::Asked) | Way::DmaBuf | Way::PeerMemory | Way::Copied => tracing::info!("{path}"),
            Way::Staged(_) => tracing::warn!("{path}"),
        }
        let sync_memops = if direct.is_some() { SyncMemops::set(&*memory) } else { SyncMemops::Unset };
        tracing::debug!("{memory:?}: {sync_memops}");
        let (region, copier) = direct.map_or((None, None), |Direct { region, copier }| (Some(region), copier));
        Ok(Self { region, copier, memory, path, sync_memops })
    }

    /// The path that requests on this region take, and why.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether CUDA's synchronous copies and fills of the memory are done when they return. A
    /// registration sets the attribute where the driver allows it, and nothing resets it.
    #[must_use]
    pub fn sync_memops(&self) -> SyncMemops {
        self.sync_memops
    }

    /// The memory's owner.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn DeviceMemory> {
        &self.memory
    }

    /// The memory of a request that sends or writes a slice.
    ///
    /// # Errors
    ///
    /// [`RegionError::Staged`]; [`RegionError::NotInRegion`].
    pub fn source<T: Pod>(&self, slice: &Ready<GpuSlice<T>>) -> Result<ExposedSlice<rdma::Gpu>, RegionError> {
        self.slice(slice.get())
    }

    /// The memory of a request that receives or reads into a slice; no send or write takes it.
    /// [`landed`](Self::landed) takes what the request's completion returns.
    ///
    /// # Errors
    ///
    /// [`RegionError::Staged`]; [`RegionError::NotInRegion`].
    pub fn sink<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<SinkSlice<rdma::Gpu>, RegionError> {
        self.slice(slice).map(ExposedSlice::into_sink)
    }

    /// The bytes that a completed receive or read has written to the memory that its completion
    /// returns, `len` of them. The GPU may not see them yet.
    ///
    /// # Errors
    ///
    /// [`RegionError::NotInRegion`] if the memory is another region's, or shorter.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdma_cuda::{GpuRegion, GpuSlice, ReadBack};
    ///
    /// /// Receives a message, and returns it when kernels may read it.
    /// fn receive(
    ///     region: &GpuRegion,
    ///     qp: &mut rdma::QueuePair<rdma::transport::Rc>,
    ///     poller: &mut rdma::Poller,
    ///     slice: &GpuSlice<u8>,
    ///     back: &mut ReadBack,
    /// ) -> Result<GpuSlice<u8>, Box<dyn std::error::Error>> {
    ///     qp.post_recv(region.sink(slice)?, 0)?;
    ///     let mut completion = poller.wait(None)?.expect("no time limit");
    ///     completion.status()?;
    ///     let len = completion.byte_len();
    ///     let received = completion.take_gpu_slice().ok_or("a receive into a GPU")?;
    ///     let visible = region.landed(&received, len)?.visible_by(|slice| back.read(region, slice))?;
    ///     Ok(visible.into_inner())
    /// }
    /// ```
    pub fn landed(&self, memory: &ExposedSlice<rdma::Gpu>, len: usize) -> Result<Landed<GpuSlice<u8>>, RegionError> {
        let place = memory.remote(..len).map_err(|_| RegionError::NotInRegion)?;
        let start = place.address().checked_sub(self.memory.address()).and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let is_here = self.registered()?.lkey() == memory.lkey();
        let range = range.filter(|_| is_here).ok_or(RegionError::NotInRegion)?;
        let slice = GpuSlice::new(Arc::clone(&self.memory)).range(range).map_err(|_| RegionError::NotInRegion)?;
        Ok(Landed::new(slice))
    }

    /// The memory of any request on a slice.
    pub(crate) fn slice<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<ExposedSlice<rdma::Gpu>, RegionError> {
        Ok(self.registered()?.slice(self.range(slice)?)?)
    }

    /// A slice for peers to access, as far as the region's rights allow.
    ///
    /// # Errors
    ///
    /// [`RegionError::Staged`]; [`RegionError::NotInRegion`].
    pub fn remote<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<RemoteSlice, RegionError> {
        Ok(self.registered()?.remote(self.range(slice)?)?)
    }

    /// Ends the NIC's access. Dropping the region does too; this reports errors.
    ///
    /// # Errors
    ///
    /// With the region: `InUse` while slices of it exist, also in requests in flight; errors of the
    /// device.
    #[allow(clippy::result_large_err, reason = "the region comes back with the error")]
    pub fn deregister(self) -> Result<Arc<dyn DeviceMemory>, Failed<Self>> {
        let Self { region, copier, memory, path, sync_memops } = self;
        match region.map(ExposedRegion::revoke) {
            None | Some(Ok(_)) => Ok(memory),
            Some(Err(RevokeError { error, region, .. })) => {
                Err(Failed::new(error, Self { region, copier, memory, path, sync_memops }))
            }
        }
    }

    /// A slice that the NIC itself may read.
    pub(crate) fn readable<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<RemoteSlice, RegionError> {
        let region = self.registered()?;
        if !region.access().contains(RemoteAccess::READ) {
            return Err(RegionError::NotReadable);
        }
        Ok(region.remote(self.range(slice)?)?)
    }

    fn registered(&self) -> Result<&ExposedRegion<rdma::Gpu>, RegionError> {
        match (&self.region, &self.path.way) {
            (Some(region), _) => Ok(region),
            (None, Way::Staged(reason)) => Err(RegionError::Staged { reason: reason.clone() }),
            (None, Way::DmaBuf | Way::PeerMemory | Way::Copied) => Err(RegionError::NotInRegion),
        }
    }

    /// The place of a slice in the region.
    fn range<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<Range<usize>, RegionError> {
        let start = slice.address().checked_sub(self.memory.address()).and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(slice.size())?));
        let is_here = Arc::ptr_eq(slice.memory(), &self.memory);
        range.filter(|range| is_here && range.end <= self.memory.size()).ok_or(RegionError::NotInRegion)
    }
}

impl fmt::Debug for GpuRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuRegion({:?}, {})", self.memory, self.path)
    }
}

/// The error of a [`GpuRegion`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There is no direct path, which is required.
    #[error("no direct path between GPU and NIC: {}", listed(.causes))]
    NoDirectPath {
        /// Why not.
        causes: Vec<Cause>,
    },
    /// Peers shall access the memory, which they cannot if it is staged.
    #[error("peers cannot access GPU memory that is staged (send messages instead): {reason}")]
    StagedForPeers {
        /// Why it is staged.
        reason: Reason,
    },
    /// The NIC shall access the memory, which is staged.
    #[error("the NIC cannot access GPU memory that is staged: {reason}")]
    Staged {
        /// Why it is staged.
        reason: Reason,
    },
    /// The slice is of memory other than the region's.
    #[error("the slice is of memory other than the region's")]
    NotInRegion,
    /// A variable of the environment has an invalid value.
    #[error(transparent)]
    Variable(#[from] InvalidVariable),
    /// The NIC shall read memory back that is registered without the right to read.
    #[error("a read back needs a region with RemoteAccess::READ")]
    NotReadable,
    /// The NIC could not read memory back; the connection to itself has ended.
    #[error("the NIC could not read GPU memory back: connect a new ReadBack")]
    ReadBack,
    /// The NIC refused.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// The GPU's driver refused.
    #[error(transparent)]
    Gpu(#[from] Error),
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Gpu(error) => error,
            RegionError::Rdma(error) => error.into(),
            other => Self::Path { reason: other.to_string() },
        }
    }
}

/// A domain that registers GPU memory.
trait Registrar {
    fn nic(&self) -> NicFacts;

    fn register_dmabuf(&self, owner: Owner, dma_buf: &DmaBuf, access: RemoteAccess) -> Registered;

    fn register_peer_memory(&self, owner: Owner, access: RemoteAccess) -> Registered;

    fn register_copied(&self, owner: Owner, copier: &CopierThreads, access: RemoteAccess) -> Registered;
}

type Registered = Result<ExposedRegion<rdma::Gpu>, Failed<Memory<rdma::Gpu>>>;

impl Registrar for ProtectionDomain {
    fn nic(&self) -> NicFacts {
        NicFacts::of(self)
    }

    fn register_dmabuf(&self, owner: Owner, dma_buf: &DmaBuf, access: RemoteAccess) -> Registered {
        // SAFETY: register_dmabuf requires a dma-buf with the owner's memory from the offset on:
        // its only constructor is the export of this memory.
        unsafe { self.register_dmabuf(owner, dma_buf.as_fd(), dma_buf.offset(), access) }
    }

    fn register_peer_memory(&self, owner: Owner, access: RemoteAccess) -> Registered {
        self.register_peer_memory(owner, access)
    }

    fn register_copied(&self, owner: Owner, copier: &CopierThreads, access: RemoteAccess) -> Registered {
        // SAFETY: register_copied requires a copier that can access the owner's memory until the
        // owner is dropped: its only caller passes that of the memory's GPU, and the memory lives
        // so long (2).
        unsafe { self.register_copied(owner, copier, access) }
    }
}

/// Memory that a NIC accesses, and the threads that copy it for the software device.
struct Direct {
    region: ExposedRegion<rdma::Gpu>,
    copier: Option<Arc<CopierThreads>>,
}

impl From<ExposedRegion<rdma::Gpu>> for Direct {
    fn from(region: ExposedRegion<rdma::Gpu>) -> Self {
        Self { region, copier: None }
    }
}

/// Registers memory in the first way that works, or says why none does.
fn register_directly(
    registrar: &impl Registrar,
    mut facts: Facts,
    memory: &Arc<dyn DeviceMemory>,
    access: RemoteAccess,
) -> Result<(Direct, Way), Vec<Cause>> {
    (facts.memory.kind, facts.memory.rdma) = classify(&**memory);
    if let Some(cause) = facts.common_cause() {
        return Err(vec![cause]);
    }
    if facts.nic.is_software {
        return match by_copies(registrar, memory, access) {
            Ok(direct) => Ok((direct, Way::Copied)),
            Err(error) => Err(vec![Cause::NotCopied(error)]),
        };
    }
    if facts.dma_buf_cause().is_none() {
        match by_dma_buf(registrar, &mut facts.memory, memory, access) {
            Some(region) => return Ok((region.into(), Way::DmaBuf)),
            None => tracing::debug!("no registration by a dma-buf: {:?}", facts.memory),
        }
    }
    if facts.peer_memory_cause().is_none() {
        match registrar.register_peer_memory(Owner(Arc::clone(memory)), access) {
            Ok(region) => return Ok((region.into(), Way::PeerMemory)),
            Err(failed) => facts.memory.peer_memory = Some(failed.error),
        }
    }
    Err(facts.causes())
}

/// The kind of memory, and whether NICs can access it, as the driver reports them (1).
fn classify(memory: &dyn DeviceMemory) -> (Option<MemoryKind>, Option<bool>) {
    let Ok(attributes) = PointerAttributes::of(memory.gpu(), memory.address()) else { return (None, None) };
    (Some(MemoryKind::of(attributes.as_ref())), attributes.and_then(|attributes| attributes.is_rdma_capable))
}

/// Exports and registers memory; notes why that failed.
fn by_dma_buf(
    registrar: &impl Registrar,
    facts: &mut MemoryFacts,
    memory: &Arc<dyn DeviceMemory>,
    access: RemoteAccess,
) -> Option<ExposedRegion<rdma::Gpu>> {
    let dma_buf = match DmaBuf::export(&**memory) {
        Ok(dma_buf) => dma_buf,
        Err(error) => {
            facts.export = Some(error);
            return None;
        }
    };
    match registrar.register_dmabuf(Owner(Arc::clone(memory)), &dma_buf, access) {
        Ok(region) => Some(region),
        Err(failed) => {
            facts.dma_buf = Some(failed.error);
            if failed.error.kind() == ErrorKind::InvalidInput {
                let needed = dma_buf.offset() + memory.size() as u64;
                facts.exported = size(&dma_buf).map(|size| (size, needed));
            }
            None
        }
    }
}

/// Registers memory that the GPU's driver copies for the software device.
fn by_copies(
    registrar: &impl Registrar,
    memory: &Arc<dyn DeviceMemory>,
    access: RemoteAccess,
) -> Result<Direct, Error> {
    let copier = copier::of(memory.gpu())?;
    let registered = registrar.register_copied(Owner(Arc::clone(memory)), &copier, access);
    let region = registered.map_err(|failed| failed.error)?;
    Ok(Direct { region, copier: Some(copier) })
}

/// The size of a dma-buf in bytes.
fn size(dma_buf: &DmaBuf) -> Option<u64> {
    let copy = dma_buf.as_fd().try_clone_to_owned().ok()?;
    Some(File::from(copy).metadata().ok()?.len())
}

/// GPU memory as an owner for `rdma`.
struct Owner(Arc<dyn DeviceMemory>);

// SAFETY: MemoryOwner requires memory that stays in place until `from_parts` or forever, and of
// which no reference exists: the contract of DeviceMemory (1, 2, 4), whose owner the parts hold.
unsafe impl MemoryOwner for Owner {
    type Placement = rdma::Gpu;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        let address = usize::try_from(self.0.address()).unwrap_or(0);
        match NonNull::new(ptr::without_provenance_mut(address)) {
            Some(address) => (address, self.0.size(), self),
            // Not an address: registration refuses memory of no bytes.
            None => (NonNull::dangling(), 0, self),
        }
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

#[cfg(test)]
mod tests;
