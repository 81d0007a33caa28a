//! Memory that its owner alone writes, and that peers may map to read.
//!
//! A [`Segment`] is a memfd whose seals forbid every writable mapping but the owner's, every
//! `write`, every hole and every change of size. A peer's [`SegmentView`] checks the seals, so that
//! its reads never fault, however the owner behaves; they may see bytes while the owner changes
//! them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Access, Allocation, Pages, SharedMemoryError, add_seals, allocate, check_file, check_memory, make_file};
use crate::os::{self, SEAL_SEAL, SIZE_SEALS, Seals, WRITE_SEAL};
use crate::{SharedSlice, SharedSliceMut};

/// Seals added once the owner has its mapping: no other writer, and no change of the seals.
const OWNER_SEALS: Seals = WRITE_SEAL.union(SEAL_SEAL);

/// Memory of this process that peers may map to read: zeroed, page aligned, allocated.
///
/// # Examples
///
/// ```
/// let segment = rdma_mem::Segment::new(100)?;
/// segment.bytes().slice(8..13).unwrap().copy_from((&b"hello"[..]).into()).unwrap();
/// segment.bytes().store_u64(0, 1).unwrap();
///
/// let view = rdma_mem::SegmentView::map(segment.fd(), 100)?;
/// assert_eq!(view.bytes().load_u64(0), Ok(1));
/// let mut seen = [0; 5];
/// view.bytes().slice(8..13).unwrap().copy_to(&mut seen).unwrap();
/// assert_eq!(&seen, b"hello");
/// # Ok::<(), rdma_mem::SharedMemoryError>(())
/// ```
#[derive(Debug)]
pub struct Segment {
    pages: Pages,
    len: usize,
    fd: OwnedFd,
}

impl Segment {
    /// Allocates `len` bytes, all zero.
    ///
    /// # Errors
    ///
    /// `Size` for no bytes or more than the address space holds; `OutOfMemory`; `System` for an
    /// error of memfd_create, fallocate, fcntl or mmap.
    pub fn new(len: usize) -> Result<Self, SharedMemoryError> {
        let mapped = check_memory(len)?;
        let fd = make_file(mapped, Allocation::OnDemand)?;
        add_seals(&fd, SIZE_SEALS)?;
        let pages = Pages::new(fd.as_fd(), mapped, Allocation::OnDemand, Access::Write)?;
        // Huge pages are made at the first access by a mapping that asks for them. Errors of both
        // calls are ignored: the kernel may not have them, and `allocate` follows.
        drop(os::prefer_huge_pages(&pages.map));
        drop(os::populate(&pages.map, 0, mapped));
        allocate(&fd, mapped)?;
        add_seals(&fd, OWNER_SEALS)?;
        Ok(Self { pages, len, fd })
    }

    /// The memfd, for a peer to map.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> SharedSliceMut<'_> {
        // SAFETY: from_raw requires bytes that are readable and writable, without plain accesses,
        // for the borrow of `self`: `pages` owns a writable mapping of at least `len` bytes (1),
        // and no method gives its address but this one.
        unsafe { SharedSliceMut::from_raw(self.pages.map.as_mut_ptr(), self.len) }
    }
}

/// A peer's [`Segment`], mapped in this process to read. A forked child does not have the mapping.
#[derive(Debug)]
pub struct SegmentView {
    pages: Pages,
    len: usize,
}

impl SegmentView {
    /// Maps the first `len` bytes of a memfd that a peer sent.
    ///
    /// Does not trust the peer: the file must have the seals of a [`Segment`], at least `len`
    /// bytes, and all its pages.
    ///
    /// # Errors
    ///
    /// `Size` for no bytes; `Untrusted` if the descriptor is not one of a [`Segment`]; `System` for
    /// an error of the kernel.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedMemoryError> {
        let mapped = check_file(fd, len, SIZE_SEALS.union(OWNER_SEALS), Allocation::Whole)?;
        let pages = Pages::new(fd, mapped, Allocation::Whole, Access::Read)?;
        pages.hide_from_children()?;
        Ok(Self { pages, len })
    }

    /// Number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> SharedSlice<'_> {
        // SAFETY: from_raw requires bytes that are readable, without plain writes, for the borrow
        // of `self`: `pages` owns a mapping of at least `len` bytes (1), which cannot be written;
        // if the owner is in this process, it writes through this crate.
        unsafe { SharedSlice::from_raw(self.pages.map.as_ptr(), self.len) }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use memmap2::MmapOptions;
    use nix::fcntl::{FallocateFlags, fallocate};

    use super::*;
    use crate::{Mapping, SharedMemory};

    #[test]
    fn a_view_sees_what_the_owner_stores() {
        let segment = Segment::new(10_000).unwrap();
        let view = SegmentView::map(segment.fd(), 10_000).unwrap();
        assert_eq!((segment.len(), view.len()), (10_000, 10_000));
        segment.bytes().slice(9_999..10_000).unwrap().copy_from((&[7_u8][..]).into()).unwrap();
        segment.bytes().store_u64(8, 42).unwrap();
        assert_eq!(view.bytes().load_u64(8), Ok(42));
        let mut last = [0];
        view.bytes().slice(9_999..10_000).unwrap().copy_to(&mut last).unwrap();
        assert_eq!(last, [7]);
    }

    #[test]
    fn a_view_outlives_the_owner() {
        let segment = Segment::new(4096).unwrap();
        let view = SegmentView::map(segment.fd(), 4096).unwrap();
        segment.bytes().store_u64(0, 3).unwrap();
        drop(segment);
        assert_eq!(view.bytes().load_u64(0), Ok(3));
    }

    #[test]
    fn nobody_else_can_write_the_memory_or_change_its_size() {
        let segment = Segment::new(8192).unwrap();
        let mut file = File::from(segment.fd().try_clone_to_owned().unwrap());
        assert!(MmapOptions::new().len(4096).map_raw(&file).is_err());
        assert!(file.write(b"x").is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(1 << 20).is_err());
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(fallocate(&file, hole, 0, 4096).is_err());
        assert!(Mapping::map(segment.fd(), 8192).is_err());
    }

    #[test]
    fn other_descriptors_and_sizes_are_refused() {
        let segment = Segment::new(4096).unwrap();
        let refusal = |fd: BorrowedFd<'_>, len| match SegmentView::map(fd, len) {
            Err(SharedMemoryError::Untrusted(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal(segment.fd(), 4097), "is shorter than the peer said");
        let writable = SharedMemory::new(4096).unwrap();
        assert_eq!(refusal(writable.fd().unwrap(), 4096), "is not a sealed memfd");
        let null = File::open("/dev/null").unwrap();
        assert_eq!(refusal(null.as_fd(), 4096), "is not a sealed memfd");
        let sparse = make_file(1 << 20, Allocation::OnDemand).unwrap();
        add_seals(&sparse, SIZE_SEALS.union(OWNER_SEALS)).unwrap();
        assert_eq!(refusal(sparse.as_fd(), 1 << 20), "is not allocated");
        assert!(matches!(SegmentView::map(segment.fd(), 0), Err(SharedMemoryError::Size)));
        assert!(matches!(Segment::new(0), Err(SharedMemoryError::Size)));
        assert_eq!(Segment::new(1 << 60).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
