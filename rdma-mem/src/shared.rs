//! Memory of this process that other processes may map.
//!
//! [`SharedMemory`] owns a memfd and its only mapping in this process. Its memory is reached through raw pointers and the
//! functions of this crate alone: no reference to it exists while a peer may have it mapped. A registry of all live
//! [`SharedMemory`] lets a software device find out, from nothing but an address range, that it could hand the memfd to a
//! peer ([`find`]). [`Mapping`] is the peer's view.
//!
//! # Safety
//!
//! The invariants that the blocks here cite:
//!
//! 1. `base` is the start of one mapping of `mapped` bytes (a positive multiple of the page size), readable and writable,
//!    made by `mmap` in process `owner` and unmapped by nobody but this value's drop there.
//! 2. The memfd is sealed against shrinking before anybody else can have it, so no access to the mapping can fault for want
//!    of a file behind it. (A peer can punch holes: those read as zeros and are filled at the next touch.)
//! 3. In a forked child the mapping may be missing and its addresses taken by something else: drops do nothing there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock};

/// Neither the size nor the seals can change: a mapping of it stays valid for ever.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// From this size on, whether there is that much memory is checked first.
const WORTH_A_LOOK: usize = 16 << 20;

static REGISTRY: RwLock<BTreeMap<usize, Arc<Backing>>> = RwLock::new(BTreeMap::new());

/// The memfd behind a [`SharedMemory`], and where this process has it mapped.
#[derive(Debug)]
pub struct Backing {
    fd: OwnedFd,
    base: usize,
    len: usize,
}

impl Backing {
    /// The memfd, sealed, to be passed to a peer.
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

/// Finds the [`SharedMemory`] in which all of a range of addresses lies.
///
/// The answer may be out of date as soon as it is given: [`SharedMemory::make_private`] and drops take entries out. The
/// memfd stays usable, but is then no longer the memory at those addresses.
#[must_use]
pub fn find(address: usize, len: usize) -> Option<Arc<Backing>> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let (&base, backing) = registry.range(..=address).next_back()?;
    let offset = address - base;
    (offset <= backing.len && len <= backing.len - offset).then(|| Arc::clone(backing))
}

/// Memory that other processes may map: zeroed, page aligned, preallocated, sealed.
///
/// # Examples
///
/// ```
/// let memory = rdma_mem::SharedMemory::new(100)?;
/// let peer = rdma_mem::Mapping::map(memory.fd().unwrap(), 100)?;
/// let hello = b"hello";
/// // SAFETY: both ranges are valid for 5 bytes, do not overlap, and only this crate touches the shared one.
/// unsafe { rdma_mem::copy(memory.as_ptr(), hello.as_ptr(), 5) };
/// let mut seen = [0; 5];
/// // SAFETY: as above.
/// unsafe { rdma_mem::copy(seen.as_mut_ptr(), peer.as_ptr(), 5) };
/// assert_eq!(&seen, hello);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    mapped: usize,
    len: usize,
    owner: u32,
    backing: Option<Arc<Backing>>,
}

// SAFETY: the value is an address and a descriptor; all access to the memory is through raw pointers whose users answer
// for races. Unmapping works from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as for Send: `&SharedMemory` gives out nothing but the address and the descriptor.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates `len` bytes, all zero.
    ///
    /// All pages are allocated at once, so that running out of memory is an error here and not a signal later.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no bytes, or more than the address space holds; otherwise what memfd_create, fallocate, fcntl or
    /// mmap report, `ENOSPC` or `ENOMEM` for want of memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let mapped = round_to_pages(len)?;
        if mapped >= WORTH_A_LOOK && available().is_some_and(|available| mapped as u64 > available) {
            // The kernel does not limit a memfd: it would rather kill processes.
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: memfd_create wants a NUL-terminated name and known flags.
        let fd = unsafe { libc::memfd_create(c"rdma-shared".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        check(fd)?;
        // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: memfd_create just returned it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(mapped).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: plain system call on an open descriptor; makes the file `size` bytes and allocates its pages.
        while let Err(error) = check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, size) }) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        // SAFETY: F_ADD_SEALS takes an int.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let base = map_shared(fd.as_fd(), mapped)?;
        let backing = Arc::new(Backing { fd, base: base.as_ptr().expose_provenance(), len: mapped });
        REGISTRY.write().unwrap_or_else(PoisonError::into_inner).insert(backing.base, Arc::clone(&backing));
        Ok(Self { base, mapped, len, owner: std::process::id(), backing: Some(backing) })
    }

    /// The first byte. The memory is valid for reads and writes of [`len`](Self::len) bytes while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The number of bytes asked for.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memfd, for a peer to map; none after [`make_private`](Self::make_private).
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.backing.as_ref().map(|backing| backing.fd())
    }

    /// The entry that [`find`] gives for this memory; none after [`make_private`](Self::make_private).
    #[must_use]
    pub fn backing(&self) -> Option<&Arc<Backing>> {
        self.backing.as_ref()
    }

    /// Moves the contents to private pages at the same address, where no peer can reach them any more.
    ///
    /// Peers that have mapped the memory keep the old pages. Afterwards, and if nothing else in this process (a device
    /// that pinned the old pages would not notice) uses the memory, references to it are sound. Does nothing the second
    /// time.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no memory for the copy: the memory is then as shared as it was.
    pub fn make_private(&mut self) -> io::Result<()> {
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        if self.owner != std::process::id() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this memory belongs to the parent process"));
        }
        // SAFETY: mmap of fresh anonymous memory at an address of the kernel's choice touches nothing of ours.
        let fresh = unsafe {
            libc::mmap(
                ptr::null_mut(),
                self.mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if fresh == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both ranges are mappings of `mapped` bytes (1, and the mmap above) that do not overlap; peers may write
        // the source meanwhile, which `copy` allows.
        unsafe { crate::copy(fresh.cast(), self.base.as_ptr(), self.mapped) };
        // SAFETY: moves the fresh mapping, which nobody else knows, over ours (1) in one step. The address stays valid
        // for the same bytes, so pointers into it stay usable.
        let moved = unsafe {
            libc::mremap(
                fresh,
                self.mapped,
                self.mapped,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                self.base.as_ptr().cast::<libc::c_void>(),
            )
        };
        if moved == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: unmaps the fresh mapping, which only this function knows.
            unsafe { libc::munmap(fresh, self.mapped) };
            return Err(error);
        }
        REGISTRY.write().unwrap_or_else(PoisonError::into_inner).remove(&backing.base);
        self.backing = None;
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // By 3; and the registry's lock may have been held by a thread that does not exist here.
            return;
        }
        if let Some(backing) = &self.backing {
            REGISTRY.write().unwrap_or_else(PoisonError::into_inner).remove(&backing.base);
        }
        // SAFETY: our own mapping (1); whoever still has pointers into it answers for them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// A peer's [`SharedMemory`], mapped here.
///
/// The peer and everyone else it shared with may change any byte at any time: use [`crate::copy()`] and [`crate::word`].
/// A forked child does not get the mapping.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    mapped: usize,
    len: usize,
    owner: u32,
}

// SAFETY: as for `SharedMemory`.
unsafe impl Send for Mapping {}
// SAFETY: as for `SharedMemory`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a memfd that a peer sent.
    ///
    /// Does not trust the peer: the file must be a memfd that can never shrink and that has `len` bytes.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no bytes; `InvalidData` when the descriptor is not what a peer that means well sends; otherwise
    /// what the kernel reports.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let mapped = round_to_pages(len)?;
        // SAFETY: F_GET_SEALS takes no argument.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's memory is not a sealed memfd"));
        }
        // SAFETY: statfs is plain data, valid when zero.
        let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: fstatfs writes one statfs to a live one.
        check(unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut fs) })?;
        if fs.f_type != libc::TMPFS_MAGIC {
            // Huge pages are a pool: touching a hole in them may fail with a signal.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's memory is not of ordinary pages"));
        }
        // SAFETY: stat is plain data, valid when zero.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: fstat writes one stat to a live one.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
        if usize::try_from(stat.st_size).is_ok_and(|size| size >= mapped) {
            // In units of 512 bytes, whatever the size of a page.
            if usize::try_from(stat.st_blocks).is_ok_and(|blocks| blocks < mapped / 512) {
                // A hollow file of any size costs its sender nothing, but us all of it.
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's memory is not allocated"));
            }
            let base = map_shared(fd, mapped)?;
            let this = Self { base, mapped, len, owner: std::process::id() };
            // SAFETY: advice about our own mapping.
            check(unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_DONTFORK) })?;
            Ok(this)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's memory is shorter than it said"))
        }
    }

    /// The first byte. The memory is valid for reads and writes of [`len`](Self::len) bytes while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The number of bytes asked for.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // SAFETY: our own mapping (1), in the process that made it (3).
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        }
    }
}

fn map_shared(fd: BorrowedFd<'_>, mapped: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: mmap at an address of the kernel's choice touches nothing of ours; the descriptor is open, and its file
    // has `mapped` bytes and cannot shrink (2).
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

fn round_to_pages(len: usize) -> io::Result<usize> {
    // SAFETY: sysconf has no conditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    match len.checked_next_multiple_of(page) {
        Some(mapped) if len > 0 && isize::try_from(mapped).is_ok() => Ok(mapped),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "shared memory of no bytes, or of too many")),
    }
}

/// Bytes that the kernel could give out without swapping.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
