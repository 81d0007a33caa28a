//! Memory of this process that other processes may map.
//!
//! [`SharedMemory`] owns a memfd and its only mapping in this process. Code accesses the memory
//! only through raw pointers and the functions of this crate: no reference to it exists while a
//! peer may have it mapped. A registry of all live [`SharedMemory`] lets a software device find the
//! memfd behind a range of addresses ([`find`]), to send the memfd to a peer. [`Mapping`] is the
//! peer's view. A [`Segment`] is memory that peers may only read.
//!
//! # Safety
//!
//! Invariants that the blocks in this module cite:
//!
//! 1. `Pages` is the only owner of its mapping: `mapped` bytes, a positive multiple of the page
//!    size, readable, and writable unless it was made with `Access::Read`. Only its drop unmaps
//!    them, in the process that mapped them.
//! 2. The file behind a mapping is sealed against shrinking before the mapping is made, so an
//!    access never lies beyond the file's end, where it would fault. (A peer can punch holes: they
//!    read as zeros and are filled at the next access.)
//! 3. A forked child may lack the mapping and have another one at its addresses, so a drop in a
//!    child unmaps nothing. A child has another `Identity` (`process.rs`), though it may have its
//!    parent's process id.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::fstat;
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::SharedMemoryError;
use crate::os::{self, SEAL_SEAL, SIZE_SEALS, Seals};
use crate::process::Identity;

mod segment;

pub use segment::{Segment, SegmentView};

/// Seals that fix the size and the seals themselves, so that a mapping stays valid forever.
const SEALS: Seals = SIZE_SEALS.union(SEAL_SEAL);

/// From this size in bytes on, an allocation first checks that the system has the memory.
const LARGE: usize = 16 << 20;

/// The memory that a process shares, by address.
struct Registry {
    process: Identity,
    entries: RwLock<BTreeMap<usize, Arc<Backing>>>,
}

/// The registry of the process that used it last; null at first. A forked child makes its own: its
/// copy of the parent's may be locked for ever, by a thread that only the parent has.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

/// The registry of this process; `None` if it has no number, and so no shared memory.
fn registry() -> Option<&'static RwLock<BTreeMap<usize, Arc<Backing>>>> {
    let process = Identity::current().ok()?;
    loop {
        let current = REGISTRY.load(Ordering::Acquire);
        // SAFETY: as_ref requires null or a pointer to a live value: the exchange below stores only
        // boxes, which are never freed then, and stores them (release) after they are made.
        if let Some(registry) = unsafe { current.as_ref() }.filter(|registry| registry.process == process) {
            return Some(&registry.entries);
        }
        let fresh = Box::into_raw(Box::new(Registry { process, entries: RwLock::default() }));
        if REGISTRY.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: `Box::from_raw` requires the pointer of a box, once: it was made above, and
            // the failed exchange has not stored it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// The memfd behind a [`SharedMemory`], and its address in this process.
#[derive(Debug)]
pub struct Backing {
    fd: OwnedFd,
    base: usize,
    len: usize,
}

impl Backing {
    /// The memfd, sealed, to be sent to a peer.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The address at which offset 0 of the memfd is mapped in this process.
    #[must_use]
    pub fn base(&self) -> usize {
        self.base
    }

    /// The size of the memfd: a multiple of the page size.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Finds the [`SharedMemory`] of this process that contains a whole range of addresses. A forked
/// child does not find the memory of its parent.
///
/// The answer may be out of date at once: [`SharedMemory::make_private`] and drops remove entries.
/// The memfd stays usable, but the memory at those addresses is then no longer the memfd's.
#[must_use]
pub fn find(address: usize, len: usize) -> Option<Arc<Backing>> {
    let registry = registry()?.read().unwrap_or_else(PoisonError::into_inner);
    let (&base, backing) = registry.range(..=address).next_back()?;
    let offset = address - base;
    (offset <= backing.len && len <= backing.len - offset).then(|| Arc::clone(backing))
}

/// The pages of a memfd that are allocated from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allocation {
    Whole,
    OnDemand,
}

/// The accesses that a mapping allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Makes an empty memfd that takes seals and can never be executed: kernels since 6.3 warn of other
/// memfds, and refuse these with `vm.memfd_noexec=2`. Older kernels do not have the flag.
///
/// # Errors
///
/// The error of memfd_create.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    Ok(os::memfd(name)?)
}

/// Makes a memfd of `mapped` bytes, a multiple of the page size, without seals.
fn make_file(mapped: usize, allocation: Allocation) -> Result<OwnedFd, SharedMemoryError> {
    let size = libc::off_t::try_from(mapped).map_err(|_| SharedMemoryError::Size)?;
    let fd = os::memfd(c"rdma-shared").map_err(SharedMemoryError::system("memfd_create"))?;
    match allocation {
        Allocation::OnDemand => {
            check_limit(mapped).and_then(|()| ftruncate(&fd, size)).map_err(SharedMemoryError::system("ftruncate"))?;
        }
        Allocation::Whole => allocate(&fd, mapped)?,
    }
    Ok(fd)
}

/// Fails for a file beyond this process's limit (`ulimit -f`), as the kernel does for a memfd, too.
/// The kernel would also send SIGXFSZ, which ends a program that does not expect it.
fn check_limit(size: usize) -> Result<(), Errno> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if size as u64 > limit => Err(Errno::EFBIG),
        // A sandbox that does not tell the limit has hardly set one.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Allocates the pages of the first `mapped` bytes, and makes the file that long.
fn allocate(fd: &OwnedFd, mapped: usize) -> Result<(), SharedMemoryError> {
    let size = libc::off_t::try_from(mapped).map_err(|_| SharedMemoryError::Size)?;
    check_limit(mapped).map_err(SharedMemoryError::system("fallocate"))?;
    loop {
        match os::fallocate(fd, size) {
            Err(Errno::EINTR) => {}
            result => return result.map_err(SharedMemoryError::system("fallocate")),
        }
    }
}

fn add_seals(fd: &OwnedFd, seals: Seals) -> Result<(), SharedMemoryError> {
    os::add_seals(fd, seals).map_err(SharedMemoryError::system("fcntl"))
}

/// A shared mapping, which only the process that made it unmaps (1, 3).
#[derive(Debug)]
struct Pages {
    map: ManuallyDrop<MmapRaw>,
    owner: Identity,
}

impl Pages {
    /// Maps the first `mapped` bytes of a memfd that is sealed and has that many bytes (2).
    fn new(
        fd: BorrowedFd<'_>,
        mapped: usize,
        allocation: Allocation,
        access: Access,
    ) -> Result<Self, SharedMemoryError> {
        let owner = Identity::current()?;
        let mut options = MmapOptions::new();
        options.len(mapped);
        if allocation == Allocation::Whole {
            options.populate();
        }
        let map = match access {
            Access::Read => options.map_raw_read_only(&fd),
            Access::Write => options.map_raw(&fd),
        };
        let map = map.map_err(SharedMemoryError::mapping)?;
        Ok(Self { map: ManuallyDrop::new(map), owner })
    }

    fn is_ours(&self) -> bool {
        self.owner.is_current()
    }

    fn hide_from_children(&self) -> Result<(), SharedMemoryError> {
        os::hide_from_children(&self.map).map_err(|error| SharedMemoryError::System { call: "madvise", error })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: ManuallyDrop::drop requires a value that is dropped once and not used
            // afterwards: this is the only call, at the end of the owner. MmapRaw's drop unmaps the
            // range that this value alone owns (1), in the process that mapped it.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// Memory that other processes may map: zeroed, page aligned, preallocated, sealed.
///
/// # Examples
///
/// ```
/// let memory = rdma_mem::SharedMemory::new(100)?;
/// let peer = rdma_mem::Mapping::map(memory.fd().unwrap(), 100)?;
/// let hello = b"hello";
/// // SAFETY: `memory` is valid for 100 bytes and `hello` for 5, they are different memory, and all
/// // accesses to the shared one are this crate's.
/// unsafe { rdma_mem::copy(memory.as_ptr(), hello.as_ptr(), 5) };
/// let mut seen = [0; 5];
/// // SAFETY: `seen` is valid for 5 bytes and `peer` for 100, they are different memory, and all
/// // accesses to the shared one are this crate's.
/// unsafe { rdma_mem::copy(seen.as_mut_ptr(), peer.as_ptr(), 5) };
/// assert_eq!(&seen, hello);
/// # Ok::<(), rdma_mem::SharedMemoryError>(())
/// ```
#[derive(Debug)]
pub struct SharedMemory {
    pages: Pages,
    len: usize,
    backing: Option<Arc<Backing>>,
}

impl SharedMemory {
    /// Allocates `len` bytes, all zero.
    ///
    /// All pages are allocated at once, so that a lack of memory is an error here and not a signal
    /// later.
    ///
    /// # Errors
    ///
    /// `Size` for no bytes or more than the address space holds; `OutOfMemory`; `System` for an
    /// error of memfd_create, fallocate, fcntl, mmap or madvise.
    pub fn new(len: usize) -> Result<Self, SharedMemoryError> {
        let mapped = check_memory(len)?;
        let fd = make_file(mapped, Allocation::Whole)?;
        add_seals(&fd, SEALS)?;
        let pages = Pages::new(fd.as_fd(), mapped, Allocation::Whole, Access::Write)?;
        let base = pages.map.as_mut_ptr().expose_provenance();
        let backing = Arc::new(Backing { fd, base, len: mapped });
        if let Some(registry) = registry() {
            registry.write().unwrap_or_else(PoisonError::into_inner).insert(base, Arc::clone(&backing));
        }
        Ok(Self { pages, len, backing: Some(backing) })
    }

    /// The first byte. The memory is valid for reads and writes of [`len`](Self::len) bytes while
    /// this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.map.as_mut_ptr()
    }

    /// The number of bytes asked for.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memfd, for a peer to map; `None` after [`make_private`](Self::make_private).
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.backing.as_ref().map(|backing| backing.fd())
    }

    /// The entry that [`find`] gives for this memory; `None` after
    /// [`make_private`](Self::make_private).
    #[must_use]
    pub fn backing(&self) -> Option<&Arc<Backing>> {
        self.backing.as_ref()
    }

    /// Moves the contents to private pages at the same address, which no peer can access.
    ///
    /// Peers that have mapped the memory keep the old pages. References to the memory are sound
    /// afterwards, provided that no other code in this process uses it (a device that pinned the
    /// old pages would keep using those). A second call does nothing.
    ///
    /// # Errors
    ///
    /// `System` with `ENOMEM` if there is no memory for the copy: the memory then stays shared.
    /// `Forked` in a forked child.
    pub fn make_private(&mut self) -> Result<(), SharedMemoryError> {
        if self.backing.is_none() {
            return Ok(());
        }
        if !self.pages.is_ours() {
            return Err(SharedMemoryError::Forked);
        }
        let mapped = self.pages.map.len();
        let ours = NonNull::new(self.pages.map.as_mut_ptr()).ok_or(SharedMemoryError::Size)?;
        let fresh = MmapOptions::new().len(mapped).populate().map_anon().map_err(SharedMemoryError::mapping)?;
        let mut fresh = ManuallyDrop::new(fresh);
        let copy = NonNull::from(&mut fresh[..]).cast::<u8>();
        // SAFETY: copy requires two ranges of `mapped` bytes that do not overlap, and no plain
        // access of this program to them meanwhile. `fresh` is a new mapping of that length, which
        // only this function knows; our mapping has that length (1), and all code accesses it
        // through this crate.
        unsafe { crate::copy(copy.as_ptr(), ours.as_ptr(), mapped) };
        // SAFETY: move_pages requires two mappings of `mapped` bytes, of which no code needs the
        // first one afterwards, and the contents of the second. `fresh` is used and dropped only if
        // it was not moved. Our range (1) gets pages of the same contents in one step, so addresses
        // in it stay valid.
        let moved = unsafe { os::move_pages(copy, mapped, ours) };
        if let Err(errno) = moved {
            drop(ManuallyDrop::into_inner(fresh));
            return Err(SharedMemoryError::system("mremap")(errno));
        }
        self.unregister();
        Ok(())
    }

    /// Removes the memory from the registry.
    fn unregister(&mut self) {
        if let (Some(backing), Some(registry)) = (self.backing.take(), registry()) {
            registry.write().unwrap_or_else(PoisonError::into_inner).remove(&backing.base);
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // The registry of a forked child does not have its parent's memory.
        if self.pages.is_ours() {
            self.unregister();
        }
    }
}

/// A peer's [`SharedMemory`], mapped in this process.
///
/// The peer, and every process to which it sent the memory, may change any byte at any time: use
/// [`crate::copy()`] and [`crate::word`]. A forked child does not have the mapping.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of a memfd that a peer sent.
    ///
    /// Does not trust the peer: the file must be a memfd that can never shrink, that has `len`
    /// bytes, and whose pages are allocated.
    ///
    /// # Errors
    ///
    /// `Size` for no bytes; `Untrusted` if the descriptor is not one of a [`SharedMemory`];
    /// `System` for an error of the kernel.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedMemoryError> {
        Self::check_and_map(fd, len, Allocation::Whole)
    }

    /// Maps a file from [`create`](Self::create) that a peer sent.
    ///
    /// Checks the file like [`map`](Self::map), except that its pages need not be allocated: the
    /// process that first touches a page allocates it.
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map).
    pub fn map_sparse(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedMemoryError> {
        Self::check_and_map(fd, len, Allocation::OnDemand)
    }

    /// Makes a sealed memfd of `len` bytes, all zero, for a peer to map, and maps it. No page is
    /// allocated: see [`allocate`](Self::allocate).
    ///
    /// # Errors
    ///
    /// `Size`; `System` for an error of memfd_create, ftruncate, fcntl or mmap.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), SharedMemoryError> {
        let fd = make_file(round_to_pages(len)?, Allocation::OnDemand)?;
        add_seals(&fd, SEALS)?;
        Ok((Self::map_sparse(fd.as_fd(), len)?, fd))
    }

    /// Allocates the pages that hold `len` bytes from `offset` on, so that a lack of memory is an
    /// error here and not a signal later. Before Linux 5.14 this does nothing.
    ///
    /// # Errors
    ///
    /// `Size` for a range beyond the mapping; `System` for an error of madvise.
    pub fn allocate(&self, offset: usize, len: usize) -> Result<(), SharedMemoryError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(SharedMemoryError::Size);
        }
        match os::populate(&self.pages.map, offset, len) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                Err(SharedMemoryError::System { call: "madvise", error })
            }
            _ => Ok(()),
        }
    }

    fn check_and_map(fd: BorrowedFd<'_>, len: usize, allocation: Allocation) -> Result<Self, SharedMemoryError> {
        let mapped = check_file(fd, len, SEALS, allocation)?;
        let pages = Pages::new(fd, mapped, allocation, Access::Write)?;
        pages.hide_from_children()?;
        Ok(Self { pages, len })
    }

    /// The first byte. The memory is valid for reads and writes of [`len`](Self::len) bytes while
    /// this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.map.as_mut_ptr()
    }

    /// The number of bytes asked for.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Checks a descriptor that a peer sent: a memfd that has these seals and at least `len` bytes.
/// Returns the number of bytes to map.
fn check_file(
    fd: BorrowedFd<'_>,
    len: usize,
    wanted: Seals,
    allocation: Allocation,
) -> Result<usize, SharedMemoryError> {
    let mapped = round_to_pages(len)?;
    if !os::seals(fd).contains(wanted) {
        return Err(SharedMemoryError::Untrusted("is not a sealed memfd"));
    }
    // Huge pages come from a pool: an access to a hole in such a file may fail with a signal.
    if !os::is_tmpfs(fd).map_err(SharedMemoryError::system("fstatfs"))? {
        return Err(SharedMemoryError::Untrusted("is not of ordinary pages"));
    }
    let stat = fstat(fd).map_err(SharedMemoryError::system("fstat"))?;
    if !usize::try_from(stat.st_size).is_ok_and(|size| size >= mapped) {
        return Err(SharedMemoryError::Untrusted("is shorter than the peer said"));
    }
    // st_blocks counts units of 512 bytes for every page size. A sparse file of any size costs
    // its sender nothing, but a process that maps it pays for all its pages.
    let is_whole = usize::try_from(stat.st_blocks).is_ok_and(|blocks| blocks >= mapped / 512);
    if allocation == Allocation::Whole && !is_whole {
        return Err(SharedMemoryError::Untrusted("is not allocated"));
    }
    Ok(mapped)
}

/// Checks that the system has memory for `len` bytes, and returns the number of bytes to map.
fn check_memory(len: usize) -> Result<usize, SharedMemoryError> {
    let mapped = round_to_pages(len)?;
    // The kernel does not limit memfds: without this check it would kill processes for lack of
    // memory.
    if mapped >= LARGE && available().is_some_and(|available| mapped as u64 > available) {
        return Err(SharedMemoryError::OutOfMemory);
    }
    Ok(mapped)
}

/// Bytes of a page of memory.
#[must_use]
pub fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

fn round_to_pages(len: usize) -> Result<usize, SharedMemoryError> {
    match len.checked_next_multiple_of(page_size()) {
        Some(mapped) if len > 0 && isize::try_from(mapped).is_ok() => Ok(mapped),
        _ => Err(SharedMemoryError::Size),
    }
}

/// The number of bytes that the kernel can provide without swapping.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
