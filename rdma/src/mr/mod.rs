//! Memory regions: memory that a device may read and write.
//!
//! A region owns its memory through any [`MemoryOwner`]. *Local* regions give no right to peers;
//! they are split into [`Buffer`]s, each exclusive, and posting moves a buffer into the queue.
//! *Exposed* regions ([`ExposedRegion`]) give rights to peers; references into them do not exist,
//! only copies and atomic words. Regions of GPU memory (`gpu`) have neither. *Sources* are only
//! read: their slices ([`SourceSlice`]) share the bytes with the program.
//!
//! # Files
//!
//! ```text
//!   local.rs, buffer.rs    local regions and their buffers
//!   exposed.rs, remote.rs  exposed regions; slices of them for peers
//!   gpu.rs, copier.rs      GPU memory (type parameter `Gpu`); threads that copy it for the
//!                          software device
//!   memory.rs              the contract of owners of memory, and an owner that is taken apart
//!   owners.rs, raw.rs      owners: vectors, boxes; memory that something else keeps
//!   pages.rs, placed.rs    pages of their own: size, node, threads that allocate them
//!   options.rs             options of a registration, and which memory and device may have them
//!   on_demand.rs           pages that are fetched before their use; all memory as one region
//!   file_map.rs            maps of files
//!   shared_owner.rs        one owner for several regions
//!   source.rs, scoped.rs   sources; memory that is registered while it is borrowed
//!   foreign.rs             memory that other code has registered
//!   pool/                  pools of buffers
//!   region_ref.rs          references to regions; the way of a pool's chunk back to it
//!   region_map.rs          the registered region that holds an address
//! ```
//!
//! # Invariants
//!
//! * **M1.** A region's memory is valid for reads and writes of `len` bytes from `address` until
//!   the region is dropped: the contract of its [`MemoryOwner`], which was taken apart, so that no
//!   other code accesses the memory, unless through `rdma_mem` while it is not private. The memory
//!   of a [scope](crate::ProtectionDomain::register_scoped) is borrowed until then. A source is
//!   valid for reads: the contract of its [`SourceOwner`].
//! * **M2.** The region is registered before the `Region` exists and until its drop. Its drop
//!   deregisters the memory before the owner gets it back; if deregistration fails, owner and
//!   parents leak. In a forked child they leak too. Memory that other code has registered, and
//!   deregisters itself, is not accessed by its device any more when the owner gets it back: the
//!   promise of the caller of `from_raw`.
//! * **M3.** A [`Segment`] lies within its region and keeps it alive.
//! * **M4.** Segments of a local region never overlap, so the holder of a segment has exclusive
//!   access to its bytes. While the device has access, the segment is parked in a ring and has no
//!   other holder. Scopes lend parts of a buffer to the device for as long as they borrow the
//!   buffer.
//! * **M5.** No reference into an exposed region exists. Its bytes are accessed only through
//!   `rdma_mem`, whose accesses count as atomic: peers, the device and our other threads may write
//!   at any time.
//! * **M6.** Host memory is initialised, by the contract of its owner. The processor never
//!   dereferences GPU memory.
//! * **M7.** Nobody writes to a source: its owner promises that for the program, it is registered
//!   without a right to write, and its slices are the memory of no request that writes.
//! * **M8.** A chunk of a pool is a local region within a slab, which is registered for as long as
//!   a chunk of it exists. Chunks do not overlap, and the slab's own regions lend nothing. Whoever
//!   has the only reference to a chunk may make its one segment; the pool has it while no segment
//!   exists.
//! * **M9.** The device knows the byte at `pointer` by the address `pointer + shift`, where the
//!   processor may have other memory. Only exposed host memory has a shift that is not 0. The
//!   provider is given that address only for accesses of the device: exposed memory is never
//!   copied when a request is posted (`HostBytes`), and it is not written by requests of queues
//!   whose provider may write with the processor (`Local::is_out_of_reach`).

mod buffer;
mod copier;
mod exposed;
mod file_map;
mod foreign;
mod gpu;
mod local;
mod memory;
mod on_demand;
mod options;
mod owners;
mod pages;
mod placed;
mod pool;
mod raw;
mod region_map;
mod region_ref;
mod remote;
mod scoped;
mod shared_owner;
mod source;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr};

pub use buffer::Buffer;
pub(crate) use buffer::resolve;
pub use copier::CopierThreads;
pub use exposed::{ExposedRegion, ExposedSlice, RevokeError, SinkSlice};
pub use file_map::{FileMap, FileSource};
pub(crate) use local::Lent;
pub use local::{LentSlice, LentSliceMut};
use memory::RawMemory;
pub use memory::{Gpu, Host, Memory, MemoryOwner, Placement, SourceOwner};
pub use on_demand::{ImplicitRegion, Prefetch};
pub use options::RegisterOptions;
pub use pages::Pages;
use pages::{STEP, Touch, touch};
pub use placed::HugePages;
use pool::Home;
pub use pool::{Pool, PoolBuilder, PoolStats, TakeBuffer};
pub use raw::RawOwner;
pub use region_map::{MappedRegion, RegionMap};
pub(crate) use region_ref::RegionRef;
pub use remote::{RemoteSlice, RemoteSliceError};
pub use scoped::ScopedMemory;
pub use shared_owner::SharedOwner;
pub use source::{RawSource, SourceSlice};

use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw};
use crate::pd::PdInner;
use crate::types::RemoteAccess;

/// The kind of a region, which decides whether references into its memory may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    LocalHost,
    LocalGpu,
    ExposedHost,
    ExposedGpu,
    /// Host memory that nobody writes.
    Source,
}

impl Kind {
    pub(crate) fn local<M: Placement>() -> Self {
        if M::IS_HOST { Self::LocalHost } else { Self::LocalGpu }
    }

    pub(crate) fn exposed<M: Placement>() -> Self {
        if M::IS_HOST { Self::ExposedHost } else { Self::ExposedGpu }
    }

    fn is_host(self) -> bool {
        !matches!(self, Self::LocalGpu | Self::ExposedGpu)
    }

    /// The device's right to write.
    fn local_flags(self) -> u32 {
        if self == Self::Source { 0 } else { ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 }
    }

    /// Whether the device may write the memory in any order unless an option forbids it. Only what
    /// polls memory in place of completions can notice: no processor polls GPU memory, nobody has
    /// the bytes of local memory before the completion (M4), and nobody writes to a source (M7).
    fn is_relaxed(self) -> bool {
        self != Self::ExposedHost
    }
}

/// How a device reaches a region's memory.
#[derive(Clone, Copy, Debug)]
enum Reach<'a> {
    /// By the memory's address.
    Address,
    /// By another address, at which the processor can access it.
    Mapping(NonNull<u8>),
    /// By copies, which the thread executes.
    Copies(&'a CopierThreads),
    /// By a dma-buf that holds it from `offset` on.
    DmaBuf { fd: BorrowedFd<'a>, offset: u64 },
}

/// A registered region.
pub(crate) struct Region {
    address: NonNull<u8>,
    len: usize,
    lkey: u32,
    rkey: u32,
    /// The difference between the address for the device and the memory's, modulo 2^64. Not 0 only
    /// for exposed host memory.
    shift: u64,
    kind: Kind,
    is_on_demand: bool,
    access: RemoteAccess,
    /// The identity of `pd`, at hand for the check of each post.
    domain: *const PdInner,
    raw: Raw<ibv_mr>,
    memory: RawMemory,
    pd: Arc<Handle<PdInner>>,
    ownership: Ownership,
    /// The pool of a chunk, whose `raw` and `memory` are the slab's (M8).
    home: Option<Home>,
}

// SAFETY: the memory belongs to the region (M1) and may be used from any thread, because its owner
// is Send; ibv_dereg_mr may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives plain fields only; M4 and M5 govern access to the memory.
unsafe impl Sync for Region {}

impl Region {
    /// Fails in a forked child, and for memory without bytes.
    fn check(pd: &PdInner, memory: &RawMemory, operation: Verb) -> Result<()> {
        pd.context.check(operation)?;
        if memory.len() == 0 { Err(Error::new(operation, ErrorKind::InvalidInput)) } else { Ok(()) }
    }

    /// Registers memory, in the given way. On failure returns the memory, which
    /// must be of `kind`, and in the dma-buf.
    fn new(
        pd: &Arc<Handle<PdInner>>,
        memory: RawMemory,
        kind: Kind,
        options: &RegisterOptions,
        reach: Reach<'_>,
    ) -> Result<Arc<Handle<Self>>, (Error, RawMemory)> {
        let operation = match reach {
            Reach::DmaBuf { .. } => Verb::RegisterDmaBuf,
            Reach::Address | Reach::Mapping(_) | Reach::Copies(_) => Verb::RegisterMr,
        };
        let checked = Self::check(pd, &memory, operation).and_then(|()| options.check(pd, &memory, kind));
        if let Err(error) = checked.and_then(|()| touch_all(&memory, kind, options)) {
            return Err((error, memory));
        }
        let (access, shift) = (options.access(), options.shift(&memory));
        let beyond = options.flags(&memory, pd.context.device.is_software());
        let flags = kind.local_flags() | access.bits() | beyond;
        let register = |flags| match reach {
            Reach::Address => register_address(pd, &memory, shift, flags),
            Reach::Mapping(mapping) => register_mapping(pd, &memory, mapping, flags),
            Reach::Copies(copier) => copier::register(pd, &memory, copier, flags),
            Reach::DmaBuf { fd, offset } => register_dma_buf(pd, &memory, fd, offset, flags),
        };
        // libibverbs removes optional flags that the kernel does not know, but not for all verbs,
        // and a libibverbs of before 2020 lacks the function that takes them.
        let optional = options.optional_flags(kind);
        let raw = register(flags | optional).or_else(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::NotSupported if optional != 0 => register(flags),
            _ => Err(error),
        });
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => return Err((error, memory)),
        };
        let is_on_demand = beyond & ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0;
        Ok(Self::of(pd, raw, memory, (kind, access), (shift, is_on_demand), Ownership::Destroy))
    }

    /// The handle of memory that is registered, with the shift (M9).
    fn of(
        pd: &Arc<Handle<PdInner>>,
        raw: Raw<ibv_mr>,
        memory: RawMemory,
        (kind, access): (Kind, RemoteAccess),
        (shift, is_on_demand): (u64, bool),
        ownership: Ownership,
    ) -> Arc<Handle<Self>> {
        // The region's address is the owner's: the C object of a dma-buf has its offset in place of
        // the address.
        let (address, len) = (memory.address(), memory.len());
        // The device accesses the memory by its numeric address.
        address.as_ptr().expose_provenance();
        // SAFETY: the reference requires a live region that nobody writes to: it is registered, and
        // its fields are constant.
        let &ibv_mr { lkey, rkey, .. } = unsafe { &*raw.as_ptr() };
        let (pd, domain) = (Arc::clone(pd), pd.identity());
        let home = None;
        let new = Self {
            address,
            len,
            lkey,
            rkey,
            shift,
            kind,
            is_on_demand,
            access,
            domain,
            raw,
            memory,
            pd,
            ownership,
            home,
        };
        Arc::new(Handle::new(new))
    }
}

/// Lets the threads of the options allocate the pages, unless they are there already.
fn touch_all(memory: &RawMemory, kind: Kind, options: &RegisterOptions) -> Result<()> {
    let threads = options.touch_threads;
    if threads == 0 || memory.placed().is_touched || !kind.is_host() {
        return Ok(());
    }
    let how = Touch { writes: kind != Kind::Source, may_fault: memory.may_fault() };
    // SAFETY: touch requires memory that is valid for reads, and for writes if it is no source, and
    // that others access atomically: M1, and the contracts of the owners; borrowed memory is
    // borrowed exclusively.
    let touched = unsafe { touch(memory.address(), memory.len(), threads, STEP, how) };
    touched.map_err(|errno| Error::from_errno(Verb::RegisterMr, errno as i32))
}

fn register_address(pd: &Handle<PdInner>, memory: &RawMemory, shift: u64, flags: u32) -> Result<Raw<ibv_mr>> {
    if shift != 0 {
        let iova = (memory.address().as_ptr().addr() as u64).wrapping_add(shift);
        return register_at(pd, memory.address(), memory.len(), iova, flags);
    }
    let address = memory.address().as_ptr().cast();
    // SAFETY: ibv_reg_mr requires a live domain of this table, which `pd` is, and memory that is
    // valid until after deregistration (M1, M2).
    let call = || unsafe { pd.context.table.ibv_reg_mr(pd.raw.as_ptr(), address, memory.len(), flags) };
    Raw::created(Verb::RegisterMr, call)
}

fn register_mapping(pd: &Handle<PdInner>, memory: &RawMemory, mapping: NonNull<u8>, flags: u32) -> Result<Raw<ibv_mr>> {
    register_at(pd, mapping, memory.len(), memory.address().as_ptr().addr() as u64, flags)
}

/// Registers `len` bytes of a region's memory, at the address `iova` for the device. `start` is the
/// memory's address, or that of a mapping of it.
fn register_at(pd: &Handle<PdInner>, start: NonNull<u8>, len: usize, iova: u64, flags: u32) -> Result<Raw<ibv_mr>> {
    start.as_ptr().expose_provenance();
    let start = start.as_ptr().cast();
    // SAFETY: ibv_reg_mr_iova requires a live domain of this table, which `pd` is, and memory that
    // is valid until after deregistration: the region's, or a mapping of it (M1, M2).
    let call = || unsafe { pd.context.table.ibv_reg_mr_iova(pd.raw.as_ptr(), start, len, iova, flags) };
    Raw::created(Verb::RegisterMr, call)
}

fn register_dma_buf(
    pd: &Handle<PdInner>,
    memory: &RawMemory,
    fd: BorrowedFd<'_>,
    offset: u64,
    flags: u32,
) -> Result<Raw<ibv_mr>> {
    let iova = memory.address().as_ptr().addr() as u64;
    let flags = i32::try_from(flags).unwrap_or(0);
    let reg = pd.context.table.ibv_reg_dmabuf_mr;
    // SAFETY: ibv_reg_dmabuf_mr requires a live domain of this table, which `pd` is, and an open
    // descriptor, which `fd` borrows for the call; the kernel keeps the dma-buf afterwards.
    let call = || unsafe { reg(pd.raw.as_ptr(), offset, memory.len(), iova, fd.as_raw_fd(), flags) };
    Raw::created(Verb::RegisterDmaBuf, call)
}

impl Region {
    /// The local key in another domain, of a chunk.
    // No call, so that the common path next to it keeps its values in registers.
    #[inline(always)]
    fn lkey_in(&self, domain: *const PdInner) -> Option<u32> {
        self.home.as_ref()?.lkey_in(domain)
    }
}

impl Object for Region {
    const DESTROY: Verb = Verb::DeregisterMr;
    const NAME: &'static str = "a memory region";

    fn made_in(&self) -> u32 {
        self.pd.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        if self.home.is_some() {
            return Ok(());
        }
        // SAFETY: ibv_dereg_mr requires a live region of this table: this function's contract.
        let call = || unsafe { (self.pd.context.table.ibv_dereg_mr)(self.raw.as_ptr()) };
        // A value that keeps the region ends it here: before the owner gets the memory back (M2).
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

/// A part of a region (M3), exclusive or not according to the region's kind (M4, M5).
pub(crate) struct Segment {
    pub(crate) region: RegionRef,
    pub(crate) pointer: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: a segment of a local region is exclusive access to its bytes, like a Box (M4); a segment
// of an exposed region gives only atomic accesses (M5), and of a source shared references (M7). Its
// region is Send and Sync.
unsafe impl Send for Segment {}
// SAFETY: `&Segment` of a local region or a source gives shared references, like `&Box<[u8]>` (M4,
// M7); of an exposed region it gives only atomic accesses (M5).
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment of the whole region, which must be exposed, a source, or have no other segment
    /// (M4).
    fn whole(region: Arc<Handle<Region>>) -> Self {
        let (pointer, len) = (region.address, region.len);
        Self { region: region.into(), pointer, len }
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.region.kind
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.region.lkey
    }

    /// The local key in another domain than [`domain`](Self::domain), if the segment is a chunk of
    /// a pool of several domains.
    #[inline(always)]
    pub(crate) fn lkey_in(&self, domain: *const PdInner) -> Option<u32> {
        // Of the region, so that a segment in registers stays there.
        self.region.lkey_in(domain)
    }

    /// The address as the device sees it.
    #[inline]
    pub(crate) fn iova(&self) -> u64 {
        (self.pointer.as_ptr().addr() as u64).wrapping_add(self.shift())
    }

    /// The difference between the address for the device and the memory's, modulo 2^64 (M9).
    #[inline]
    pub(crate) fn shift(&self) -> u64 {
        self.region.shift
    }

    /// The segment's 8 bytes as a number, if it is exactly 8 bytes of host memory.
    pub(crate) fn word(&self) -> Option<u64> {
        if self.len == size_of::<u64>() { self.front().map(u64::from_ne_bytes) } else { None }
    }

    /// A copy of the first `N` bytes, if the segment has as many and is host memory.
    pub(crate) fn front<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        if self.len < N || !self.kind().is_host() {
            return None;
        }
        // SAFETY: copy requires two valid ranges that do not overlap: the segment is valid for `N`
        // bytes (M1, M3) and `bytes` is a local array. In a local region nobody else accesses the
        // bytes (M4); in an exposed one all accesses are atomic (M5); a source is only read (M7).
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.pointer.as_ptr(), N) };
        Some(bytes)
    }

    #[inline]
    pub(crate) fn domain(&self) -> *const PdInner {
        self.region.domain
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("address", &self.pointer).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
