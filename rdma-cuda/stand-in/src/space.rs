//! The device address space, and the memory behind it.
//!
//! Two reservations of equal size: device addresses lie in the first, which is never accessible;
//! the byte of the device address `base + n` is at `shadow + n`, where memory files are mapped.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::codes::{Code, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};

/// The page of a GPU: plain allocations begin at one.
pub(crate) const GPU_PAGE: usize = 64 << 10;
/// The granularity of virtual memory management.
pub(crate) const GRANULARITY: usize = 2 << 20;
/// The size of the device address space: more than all GPUs have memory, and small enough for two
/// of them under valgrind, whose programs have 128 GiB of addresses.
const SIZE: usize = 40 << 30;

static SPACE: LazyLock<Mutex<Space>> = LazyLock::new(|| Mutex::new(Space::new()));

/// Locks the address space.
pub(crate) fn space() -> MutexGuard<'static, Space> {
    SPACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Physical memory: a memory file.
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    pub(crate) size: usize,
    pub(crate) device: c_int,
    pub(crate) shareable: bool,
    /// `gpuDirectRDMACapable`
    pub(crate) capable: bool,
}

impl Backing {
    pub(crate) fn new(size: usize, device: c_int, shareable: bool, capable: bool) -> Result<Self, Code> {
        let file = memfd_create(name(device).as_str(), MFdFlags::MFD_CLOEXEC).map_err(|_| OUT_OF_MEMORY)?;
        nix::unistd::ftruncate(&file, size as i64).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Self { file, size, device, shareable, capable })
    }
}

/// The name of a memory file, which says whose memory it is.
fn name(device: c_int) -> String {
    format!("stand-in-gpu-{device}")
}

/// The GPU of a memory file that [`Backing::new`] of some process has made.
pub(crate) fn device(file: &OwnedFd) -> Option<c_int> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    path.to_str()?.strip_prefix("/memfd:stand-in-gpu-")?.split(' ').next()?.parse().ok()
}

/// How memory came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Pool,
    Managed,
    Vmm,
}

/// A mapped piece of the address space.
pub(crate) struct Mapping {
    /// The size that the program asked for.
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    pub(crate) backing: Arc<Backing>,
    /// Whether `cuMemSetAccess` has allowed access.
    pub(crate) accessible: bool,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
    pub(crate) sync_memops: bool,
}

pub(crate) struct Space {
    base: usize,
    shadow: usize,
    /// Start and size of each part of the space that is in use.
    ranges: BTreeMap<usize, usize>,
    mappings: BTreeMap<usize, Mapping>,
    next: usize,
}

impl Space {
    fn new() -> Self {
        let (base, shadow) = (reserve(), reserve());
        Self { base, shadow, ranges: BTreeMap::new(), mappings: BTreeMap::new(), next: base }
    }

    /// Takes a range of addresses. Addresses that were freed are used again as late as possible.
    pub(crate) fn take(&mut self, size: usize, align: usize) -> Result<usize, Code> {
        let size =
            size.checked_next_multiple_of(align).filter(|&size| size > 0 && size <= SIZE).ok_or(INVALID_VALUE)?;
        for start in [self.next, self.base] {
            if let Some(at) = self.gap(start.next_multiple_of(align), size, align) {
                self.ranges.insert(at, size);
                self.next = at + size;
                return Ok(at);
            }
        }
        Err(OUT_OF_MEMORY)
    }

    fn gap(&self, mut at: usize, size: usize, align: usize) -> Option<usize> {
        loop {
            let end = at.checked_add(size).filter(|&end| end <= self.base + SIZE)?;
            let Some((start, length)) = self.ranges.range(..end).next_back() else { return Some(at) };
            if start + length <= at {
                return Some(at);
            }
            at = (start + length).next_multiple_of(align);
        }
    }

    /// The number of ranges and mappings.
    pub(crate) fn live(&self) -> usize {
        self.ranges.len() + self.mappings.len()
    }

    /// Gives back a range of addresses.
    pub(crate) fn give_back(&mut self, at: usize) -> Result<(), Code> {
        self.ranges.remove(&at).map(drop).ok_or(INVALID_VALUE)
    }

    /// Maps a part of physical memory at an address that was taken.
    pub(crate) fn map(&mut self, at: usize, offset: usize, mapping: Mapping) -> Result<(), Code> {
        let (start, length) = self.ranges.range(..=at).next_back().ok_or(INVALID_VALUE)?;
        let is_free = self.mapping(at).is_none();
        let fits = at + mapping.size <= start + length && offset + mapping.size <= mapping.backing.size;
        if !is_free || !fits {
            return Err(INVALID_VALUE);
        }
        self.place(at, mapping.size, Some((&mapping.backing.file, offset)))?;
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// Unmaps what was mapped at an address.
    pub(crate) fn unmap(&mut self, at: usize) -> Result<Mapping, Code> {
        let mapping = self.mappings.remove(&at).ok_or(INVALID_VALUE)?;
        self.place(at, mapping.size, None)?;
        Ok(mapping)
    }

    /// Replaces a part of the shadow by a part of a file, or by nothing.
    fn place(&self, at: usize, size: usize, file: Option<(&OwnedFd, usize)>) -> Result<(), Code> {
        let address = NonZeroUsize::new(at - self.base + self.shadow).ok_or(INVALID_VALUE)?;
        let length = NonZeroUsize::new(size).ok_or(INVALID_VALUE)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let fixed = MapFlags::MAP_FIXED;
        let result = match file {
            // SAFETY: mmap requires that a fixed mapping replaces nothing that is in use: the
            // address lies in the shadow, which belongs to this space.
            Some((file, offset)) => unsafe {
                mmap(Some(address), length, access, fixed | MapFlags::MAP_SHARED, file.as_fd(), offset as i64)
            },
            // SAFETY: mmap_anonymous requires the same, and the address lies in the shadow.
            None => unsafe {
                let flags = fixed | MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
                mmap_anonymous(Some(address), length, ProtFlags::PROT_NONE, flags)
            },
        };
        result.map(drop).map_err(|_| OUT_OF_MEMORY)
    }

    /// The mapping that contains an address, and its start.
    pub(crate) fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address < start + mapping.size).then_some((*start, mapping))
    }

    /// Sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` of the mapping that contains an address, which must
    /// not be one of virtual memory management.
    pub(crate) fn set_sync_memops(&mut self, address: usize, value: bool) -> Result<(), Code> {
        let (start, _) = self.mapping(address).ok_or(INVALID_VALUE)?;
        match self.mappings.get_mut(&start) {
            Some(mapping) if mapping.kind != Kind::Vmm => mapping.sync_memops = value,
            _ => return Err(NOT_SUPPORTED),
        }
        Ok(())
    }

    /// Allows access to all mappings in a range.
    pub(crate) fn allow(&mut self, at: usize, size: usize) -> Result<(), Code> {
        let mut inside = self.mappings.range_mut(at..at + size).peekable();
        inside.peek().ok_or(INVALID_VALUE)?;
        inside.for_each(|(_, mapping)| mapping.accessible = true);
        Ok(())
    }

    /// The place of the bytes of a range of device memory that is mapped and accessible.
    pub(crate) fn bytes(&self, address: usize, length: usize) -> Option<NonNull<c_void>> {
        let mut at = address;
        while at < address.checked_add(length)? {
            let (start, mapping) = self.mapping(at).filter(|(_, mapping)| mapping.accessible)?;
            at = start + mapping.size;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(address.wrapping_sub(self.base).wrapping_add(self.shadow)))
    }
}

/// Reserves addresses, and returns the first that is aligned to [`GRANULARITY`].
fn reserve() -> usize {
    let length = NonZeroUsize::new(SIZE + GRANULARITY).expect("not 0");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: mmap_anonymous requires that a fixed mapping replaces nothing: this one is not fixed.
    let start = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, flags) }.expect("room for addresses");
    start.as_ptr().expose_provenance().next_multiple_of(GRANULARITY)
}
