//! Memory that work requests name: the engine's only module with `unsafe` code.
//!
//! # Invariants
//!
//! 1. A [`Source`] is readable for its lifetime, a [`Target`] readable and writable: whoever makes
//!    one from a raw pointer promises it. Others (threads, processes) may read and write the bytes
//!    meanwhile; so all access goes through `rdma_mem`, whose copies behave as relaxed atomic
//!    accesses, and no reference is ever made.
//! 2. A `Region` is readable, and writable if its access flags say so, from `register` to
//!    `deregister`: the caller of `register` promises it. Spans of a region borrow it, so none
//!    outlives it.
//! 3. An [`Area`] is readable and writable as long as its owner, which it holds, lives.
//! 4. A part of a span lies in the span: `part` checks it, and the lengths of copies are the
//!    shorter of the two ends'.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use std::any::Any;
use std::sync::Arc;

use rdma_mem::word;
use rdma_sys::ibv_access_flags;

/// Rights that make the device write to a region.
const WRITES: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Bytes that may be read for `'a`, and may change meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    ptr: *const u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

/// Bytes that may be read and written for `'a`, and may change meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    ptr: *mut u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

impl<'a> Source<'a> {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self { ptr: core::ptr::null(), len: 0, lives: PhantomData };

    /// The bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` stay readable for `'a`; nobody writes them but by atomic accesses,
    /// other processes, or accesses that are synchronised with this thread. `len` is at most
    /// `isize::MAX`.
    pub(crate) const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// The bytes of a slice.
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// How many bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` of the bytes, from `offset` on; `None` if there are not as many.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then(|| Self {
            ptr: self.ptr.wrapping_add(offset),
            len,
            lives: PhantomData,
        })
    }

    /// Copies to the start of `bytes`, as many as fit.
    pub(crate) fn copy_to_slice(&self, bytes: &mut [u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: of `copy`: the source is readable for `len` bytes (1), `bytes` is an exclusive
        // reference, so the ranges do not overlap and nobody else accesses it; nobody writes the
        // source but as 1 allows.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.ptr, len) }
    }
}

impl<'a> Target<'a> {
    /// The bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// As [`Source::from_raw`], and the bytes are writable, and nobody else accesses them but by
    /// atomic accesses, other processes, or accesses that are synchronised with this thread.
    pub(crate) const unsafe fn from_raw(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// The bytes of a slice.
    #[cfg(test)]
    pub(crate) const fn of(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// `len` of the bytes, from `offset` on; `None` if there are not as many.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then(|| Self {
            ptr: self.ptr.wrapping_add(offset),
            len,
            lives: PhantomData,
        })
    }

    /// Copies `source` here, as much as fits; the last bytes become visible last.
    #[inline(always)]
    pub(crate) fn write(&self, source: Source<'_>) {
        let len = self.len.min(source.len);
        if source.ptr.addr().abs_diff(self.ptr.addr()) < len {
            self.write_overlapping(source, len);
            return;
        }
        // SAFETY: of `copy_ordered`: both ranges are valid for `len` bytes (1, 4), they do not
        // overlap (just checked; the same memory mapped twice is not one range), and others access
        // them only as 1 allows.
        unsafe { rdma_mem::copy_ordered(self.ptr, source.ptr, len) }
    }

    /// A message onto itself: what the bytes become is nobody's business, but that they are copied
    /// soundly is.
    #[cold]
    fn write_overlapping(&self, source: Source<'_>, len: usize) {
        let mut block = [0_u8; 256];
        let mut at = 0;
        while at < len {
            let n = block.len().min(len - at);
            // SAFETY: `at + n <= len`, so the source's bytes are valid (1, 4); `block` is a local.
            unsafe { rdma_mem::copy(block.as_mut_ptr(), source.ptr.wrapping_add(at), n) };
            // SAFETY: of `copy_ordered`: `at + n <= len` bytes of the target are writable (1, 4),
            // and `block`, a local, overlaps nothing.
            unsafe { rdma_mem::copy_ordered(self.ptr.wrapping_add(at), block.as_ptr(), n) };
            at += n;
        }
    }

    /// The 8 bytes here as an atomic word: what it was, after `change`. `None` if they are not 8
    /// aligned ones.
    pub(super) fn atomic(&self, change: Atomic) -> Option<u64> {
        let address = self.ptr.cast::<u64>();
        if self.len != 8 || !address.is_aligned() {
            return None;
        }
        Some(match change {
            // SAFETY: of `fetch_add_u64`: 8 aligned, writable bytes (checked above; 1), which
            // others access only as 1 allows.
            Atomic::Add(value) => unsafe { word::fetch_add_u64(address, value, Ordering::AcqRel) },
            Atomic::CompareSwap { compare, swap } => {
                // SAFETY: of `compare_exchange_u64`: 8 aligned, writable bytes (checked above; 1),
                // which others access only as 1 allows.
                let found = unsafe { word::compare_exchange_u64(address, compare, swap, Ordering::AcqRel) };
                found.unwrap_or_else(|found| found)
            }
        })
    }
}

/// What an atomic does to its word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atomic {
    /// Fetch and add.
    Add(u64),
    /// Compare and swap.
    CompareSwap { compare: u64, swap: u64 },
}

/// What a frame's payload is made of: pieces in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather<'a> {
    parts: &'a [Source<'a>],
    len: usize,
}

/// Room for the pieces of a [`Gather`].
pub(super) struct Scratch<'a, const N: usize> {
    parts: [Source<'a>; N],
    count: usize,
    len: usize,
}

impl<'a, const N: usize> Scratch<'a, N> {
    /// No pieces yet.
    pub(super) const fn new() -> Self {
        Self { parts: [Source::EMPTY; N], count: 0, len: 0 }
    }

    /// Appends a piece; false if there is no room for it.
    pub(super) fn push(&mut self, source: Source<'a>) -> bool {
        let Some(part) = self.parts.get_mut(self.count) else { return false };
        *part = source;
        self.count += 1;
        self.len += source.len;
        true
    }

    /// The pieces.
    pub(super) fn gather(&self) -> Gather<'_> {
        Gather { parts: &self.parts[..self.count], len: self.len }
    }
}

impl<'a> Gather<'a> {
    /// No payload.
    pub(crate) const EMPTY: Self = Self { parts: &[], len: 0 };

    /// One piece.
    pub(crate) const fn one(source: &'a Source<'a>) -> Self {
        Self { parts: core::slice::from_ref(source), len: source.len }
    }

    /// These pieces.
    pub(crate) fn of(parts: &'a [Source<'a>]) -> Self {
        Self { parts, len: parts.iter().map(Source::len).sum() }
    }

    /// How many bytes in all.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The pieces.
    pub(crate) const fn parts(&self) -> &'a [Source<'a>] {
        self.parts
    }

    /// Copies everything to the start of `target`; false, and nothing is copied, if it does not
    /// fit.
    #[inline(always)]
    #[must_use]
    pub(crate) fn copy_to(&self, target: Target<'_>) -> bool {
        if self.len > target.len {
            return false;
        }
        if let [part] = self.parts {
            target.write(*part);
            return true;
        }
        let mut at = 0;
        for part in self.parts() {
            if let Some(to) = target.part(at, part.len) {
                to.write(*part);
            }
            at += part.len;
        }
        true
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Region {
    ptr: *mut u8,
    len: usize,
    iova: u64,
    access: u32,
}

// SAFETY: an address and a length; the memory is accessed as 1 and 2 say, from whatever thread.
unsafe impl Send for Region {}

impl Region {
    /// The memory of a registration.
    ///
    /// # Safety
    ///
    /// Invariant 2 holds until the value is dropped; `len` is at most `isize::MAX`.
    pub(super) const unsafe fn new(ptr: *mut u8, len: usize, iova: u64, access: u32) -> Self {
        Self { ptr, len, iova, access }
    }

    /// Its rights.
    pub(super) const fn access(&self) -> u32 {
        self.access
    }

    /// Where it begins for requests.
    pub(super) const fn iova(&self) -> u64 {
        self.iova
    }

    /// Its length.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Where it begins in this process.
    pub(super) fn addr(&self) -> usize {
        self.ptr.addr()
    }

    /// Where `len` bytes at `addr` begin in the region, if they lie in it.
    fn offset(&self, addr: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        (offset <= self.len && len <= self.len - offset).then_some(offset)
    }

    /// The bytes at `addr`, if they lie in the region.
    pub(super) fn source(&self, addr: u64, len: usize) -> Option<Source<'_>> {
        let offset = self.offset(addr, len)?;
        Some(Source { ptr: self.ptr.wrapping_add(offset), len, lives: PhantomData })
    }

    /// The bytes at `addr` to be written, if they lie in the region and it may be written.
    pub(super) fn target(&self, addr: u64, len: usize) -> Option<Target<'_>> {
        let offset = self.offset(addr, len)?;
        (self.access & WRITES != 0).then(|| Target { ptr: self.ptr.wrapping_add(offset), len, lives: PhantomData })
    }
}

/// Memory shared with other processes, with what keeps it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    ptr: *mut u8,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an area is an address and its owner; all access to the bytes is by atomics (invariants 1
// and 3), and the owner is itself Send and Sync.
unsafe impl Send for Area {}

impl Area {
    /// The memory at `ptr`, kept by `owner`.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` stay mapped, readable and writable, as long as `owner` lives; nobody in
    /// this process accesses them but by atomic accesses. `len` is at most `isize::MAX`.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, _owner: owner }
    }

    /// How many bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// `len` bytes from `offset` on.
    pub(super) fn target(&self, offset: usize, len: usize) -> Option<Target<'_>> {
        Target { ptr: self.ptr, len: self.len, lives: PhantomData }.part(offset, len)
    }

    /// `len` bytes from `offset` on.
    pub(super) fn source(&self, offset: usize, len: usize) -> Option<Source<'_>> {
        Source { ptr: self.ptr, len: self.len, lives: PhantomData }.part(offset, len)
    }

    /// The address of the word at `offset`, if an aligned one lies there.
    fn word(&self, offset: usize) -> Option<*mut u64> {
        let word = self.target(offset, 8)?.ptr.cast::<u64>();
        word.is_aligned().then_some(word)
    }

    /// The word at `offset`, by an acquire load; 0 if there is none.
    pub(super) fn load(&self, offset: usize) -> u64 {
        // SAFETY: `word` gives aligned words of the area only (3, 4), which is accessed by atomics
        // only.
        self.word(offset).map_or(0, |word| unsafe { word::load_u64(word, Ordering::Acquire) })
    }

    /// Stores the word at `offset`, with release; nothing happens if there is none.
    pub(super) fn store(&self, offset: usize, value: u64) {
        if let Some(word) = self.word(offset) {
            // SAFETY: of `store_u64`: `word` gives aligned words of the area (4), which is writable
            // and accessed by atomics only (3).
            unsafe { word::store_u64(word, value, Ordering::Release) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MAX_SGE;
    use super::*;

    #[test]
    fn parts_lie_in_the_whole() {
        let bytes = [1_u8, 2, 3, 4];
        let source = Source::of(&bytes);
        assert_eq!(source.part(1, 3).unwrap().len(), 3);
        assert_eq!(source.part(4, 0).unwrap().len(), 0);
        assert!(source.part(1, 4).is_none());
        assert!(source.part(5, 0).is_none());
        assert!(source.part(usize::MAX, 2).is_none());
        let mut out = [0; 2];
        source.part(1, 3).unwrap().copy_to_slice(&mut out);
        assert_eq!(out, [2, 3]);
    }

    #[test]
    fn a_gather_copies_its_pieces_one_after_the_other_if_they_fit() {
        let (first, second) = ([1_u8, 2, 3], [4_u8; 5]);
        let mut scratch = Scratch::<MAX_SGE>::new();
        assert!(scratch.push(Source::of(&first)) && scratch.push(Source::of(&second)));
        let mut out = [0_u8; 8];
        assert!(!scratch.gather().copy_to(Target::of(&mut out[..7])));
        assert_eq!(out, [0; 8]);
        assert!(scratch.gather().copy_to(Target::of(&mut out)));
        assert_eq!(out, [1, 2, 3, 4, 4, 4, 4, 4]);
        for _ in 2..MAX_SGE {
            assert!(scratch.push(Source::EMPTY));
        }
        assert!(!scratch.push(Source::EMPTY));
    }

    #[test]
    fn a_write_onto_itself_is_sound() {
        let mut bytes = [7_u8; 1000];
        let ptr = bytes.as_mut_ptr();
        // SAFETY: both lie in the array, which nobody else touches.
        let target = unsafe { Target::from_raw(ptr.wrapping_add(10), 900) };
        // SAFETY: of `from_raw`: the first 900 bytes of the same array.
        let source = unsafe { Source::from_raw(ptr, 900) };
        target.write(source);
        assert_eq!(bytes, [7; 1000]);
    }

    #[test]
    fn atomics_want_eight_aligned_bytes() {
        let mut words = [5_u64, 6];
        let ptr = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the array's 16 bytes, which nobody else touches.
        let all = unsafe { Target::from_raw(ptr, 16) };
        assert_eq!(all.part(4, 8).unwrap().atomic(Atomic::Add(1)), None);
        assert_eq!(all.part(0, 4).unwrap().atomic(Atomic::Add(1)), None);
        assert_eq!(all.part(8, 8).unwrap().atomic(Atomic::Add(u64::MAX)), Some(6));
        assert_eq!(all.part(0, 8).unwrap().atomic(Atomic::CompareSwap { compare: 4, swap: 9 }), Some(5));
        assert_eq!(all.part(0, 8).unwrap().atomic(Atomic::CompareSwap { compare: 5, swap: 9 }), Some(5));
        assert_eq!(words, [9, 5]);
    }

    #[test]
    fn a_region_gives_what_lies_in_it_and_only_writable_ones_to_be_written() {
        let mut bytes = [0_u8; 64];
        let ptr = bytes.as_mut_ptr();
        // SAFETY: the array lives longer than the regions, and nobody else touches it.
        let read_only = unsafe { Region::new(ptr, 64, u64::MAX - 64, 4) };
        assert!(read_only.source(u64::MAX - 64, 64).is_some());
        assert!(read_only.source(u64::MAX - 1, 2).is_none());
        assert!(read_only.source(u64::MAX - 65, 2).is_none());
        assert!(read_only.source(0, 1).is_none());
        assert!(read_only.target(u64::MAX - 64, 1).is_none());
        // SAFETY: of `new`: the same array, which lives longer; the regions are never used at once.
        let writable = unsafe { Region::new(ptr, 64, 0, 1) };
        assert!(writable.target(63, 1).is_some());
        assert!(writable.target(64, 0).is_some());
        assert!(writable.target(65, 0).is_none());
    }

    #[test]
    fn an_area_has_words_where_they_are_aligned() {
        let words = Arc::new([0_u64; 4].map(core::sync::atomic::AtomicU64::new));
        // SAFETY: the owner is the memory, and is made of atomics.
        let area = unsafe { Area::new(words.as_ptr().cast::<u8>().cast_mut(), 32, Arc::clone(&words) as _) };
        area.store(8, 77);
        area.store(12, 1);
        area.store(32, 1);
        assert_eq!((area.load(8), area.load(12), area.load(32)), (77, 0, 0));
        assert!(area.source(24, 8).is_some() && area.source(25, 8).is_none() && area.target(0, 33).is_none());
    }
}
