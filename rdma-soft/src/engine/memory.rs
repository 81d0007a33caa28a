//! Memory that work requests name: the engine's one module that accesses memory with `unsafe` code.
//!
//! # Invariants
//!
//! 1. A [`Source`] is readable for its lifetime, a [`Target`] readable and writable: the caller who
//!    creates one from a raw pointer promises this. Others (threads, processes) may read and write
//!    the bytes at the same time. Therefore all access goes through `rdma_mem`, whose copies behave
//!    as relaxed atomic accesses, and no reference to the bytes is ever created.
//! 2. A `Region` is readable, and writable if its access flags say so, from `register` to
//!    `deregister`: the caller of `register` promises this. The sources and targets of a region
//!    borrow it, so none outlives it.
//! 3. An [`Area`] is readable and writable as long as its owner lives; the area holds the owner.
//! 4. A part of a source or target lies in the whole: `part` checks this. A copy is as long as the
//!    shorter of its two sides.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use std::any::Any;
use std::sync::Arc;

use rdma_mem::word;
use rdma_sys::ibv_access_flags;

/// Rights that let the device write to a region.
const WRITES: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Where a payload most likely lies. Only the speed of its copy depends on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In memory, or in this core's caches.
    Memory,
    /// In the caches of another core, or in a cache that the cores share.
    PeerCache,
}

/// Bytes that may be read for `'a`, and may change at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    ptr: *const u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

/// Bytes that may be read and written for `'a`, and may change at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    ptr: *mut u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

impl<'a> Source<'a> {
    /// A source without bytes.
    pub(crate) const EMPTY: Self = Self { ptr: core::ptr::null(), len: 0, lives: PhantomData };

    /// Creates a source of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` stay readable for `'a`; they are written only by atomic accesses, by
    /// other processes, or by accesses that are synchronised with this thread. `len` is at most
    /// `isize::MAX`.
    pub(crate) const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// Creates a source of the bytes of a slice.
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// Returns the number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether the source has no bytes.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for system calls that read the bytes.
    pub(crate) const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Returns `len` of the bytes from `offset` on; `None` if the range does not lie in the source.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then(|| Self {
            ptr: self.ptr.wrapping_add(offset),
            len,
            lives: PhantomData,
        })
    }

    /// Copies the first bytes to the start of `bytes`: as many as both have.
    pub(crate) fn copy_to_slice(&self, bytes: &mut [u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: `copy` requires `len` readable bytes at the source: `len` is at most the source's
        // length, and invariant 1 makes them readable. It requires `len` writable bytes at the
        // destination that do not overlap the source and that nobody else accesses: `bytes` is an
        // exclusive reference. Others write the source only as invariant 1 allows.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.ptr, len) }
    }
}

impl<'a> Target<'a> {
    /// Creates a target of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// The requirements of [`Source::from_raw`] hold. The bytes are writable, too, and others
    /// access them only by atomic accesses, from other processes, or by accesses that are
    /// synchronised with this thread.
    pub(crate) const unsafe fn from_raw(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// Creates a target of the bytes of a slice.
    pub(crate) const fn of(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// Returns the number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte, for system calls that write the bytes.
    pub(crate) const fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns the first bytes as a source, at most `len`, that does not borrow their owner.
    ///
    /// # Safety
    ///
    /// The owner of the bytes keeps them as invariant 1 says for `'b`.
    pub(super) unsafe fn first<'b>(&self, len: usize) -> Source<'b> {
        Source { ptr: self.ptr, len: len.min(self.len), lives: PhantomData }
    }

    /// Returns `len` of the bytes from `offset` on; `None` if the range does not lie in the target.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then(|| Self {
            ptr: self.ptr.wrapping_add(offset),
            len,
            lives: PhantomData,
        })
    }

    /// Copies `source` to the start of the target, as much as fits; the last bytes become visible
    /// last.
    #[inline(always)]
    pub(crate) fn write(&self, source: Source<'_>) {
        let len = self.len.min(source.len);
        if source.ptr.addr().abs_diff(self.ptr.addr()) < len {
            self.write_overlapping(source, len);
            return;
        }
        // SAFETY: `copy_ordered` requires two ranges that are valid for `len` bytes: invariants 1
        // and 4, and `len` is the shorter length. It requires that the ranges do not overlap:
        // checked just above, and the same memory mapped twice is not one range. Others access them
        // only as invariant 1 allows.
        unsafe { rdma_mem::copy_ordered(self.ptr, source.ptr, len) }
    }

    /// Like [`write`](Self::write), from where `source` lies.
    #[inline(always)]
    pub(super) fn write_from(&self, source: Source<'_>, origin: Origin) {
        match origin {
            Origin::Memory => self.write(source),
            Origin::PeerCache => self.write_from_peer(source),
        }
    }

    fn write_from_peer(&self, source: Source<'_>) {
        let len = self.len.min(source.len);
        if source.ptr.addr().abs_diff(self.ptr.addr()) < len {
            self.write_overlapping(source, len);
            return;
        }
        // SAFETY: `copy_from_peer` requires two ranges that are valid for `len` bytes: invariants 1
        // and 4, and `len` is the shorter length. It requires that the ranges do not overlap:
        // checked just above, and the same memory mapped twice is not one range. Others access them
        // only as invariant 1 allows.
        unsafe { rdma_mem::copy_from_peer(self.ptr, source.ptr, len) }
    }

    /// Copies `source` to the start of the target, as much as fits, for a reader on another core.
    #[inline]
    fn write_for_peer(&self, source: Source<'_>) {
        let len = self.len.min(source.len);
        if source.ptr.addr().abs_diff(self.ptr.addr()) < len {
            self.write_overlapping(source, len);
            return;
        }
        // SAFETY: `copy_for_peer` requires two ranges that are valid for `len` bytes: invariants 1
        // and 4, and `len` is the shorter length. It requires that the ranges do not overlap:
        // checked just above, and the same memory mapped twice is not one range. Others access them
        // only as invariant 1 allows.
        unsafe { rdma_mem::copy_for_peer(self.ptr, source.ptr, len) }
    }

    /// Copies between overlapping ranges, through a local buffer. The resulting bytes are
    /// unspecified; only the soundness of the copy matters. Bytes that lie in their place already
    /// stay.
    #[cold]
    fn write_overlapping(&self, source: Source<'_>, len: usize) {
        if core::ptr::eq(source.ptr, self.ptr) {
            return;
        }
        let mut block = [0_u8; 256];
        let mut at = 0;
        while at < len {
            let n = block.len().min(len - at);
            // SAFETY: `copy` requires `n` readable bytes at the source: `at + n <= len` (invariants
            // 1 and 4). `block` is a local of at least `n` bytes, so it is writable and overlaps
            // nothing.
            unsafe { rdma_mem::copy(block.as_mut_ptr(), source.ptr.wrapping_add(at), n) };
            // SAFETY: `copy_ordered` requires `n` writable bytes at the target: `at + n <= len`
            // (invariants 1 and 4). `block` is a local of at least `n` bytes, so it is readable and
            // overlaps nothing.
            unsafe { rdma_mem::copy_ordered(self.ptr.wrapping_add(at), block.as_ptr(), n) };
            at += n;
        }
    }

    /// Applies an atomic operation to the target as one 8-byte word and returns the word's previous
    /// value. `None` if the target is not 8 aligned bytes.
    pub(super) fn atomic(&self, change: Atomic) -> Option<u64> {
        let address = self.ptr.cast::<u64>();
        if self.len != 8 || !address.is_aligned() {
            return None;
        }
        Some(match change {
            // SAFETY: `fetch_add_u64` requires 8 aligned, writable bytes: length and alignment were
            // checked above, and invariant 1 makes them writable. Others access them only as
            // invariant 1 allows.
            Atomic::Add(value) => unsafe { word::fetch_add_u64(address, value, Ordering::AcqRel) },
            Atomic::CompareSwap { compare, swap } => {
                // SAFETY: `compare_exchange_u64` requires 8 aligned, writable bytes: length and
                // alignment were checked above, and invariant 1 makes them writable. Others access
                // them only as invariant 1 allows.
                let found = unsafe { word::compare_exchange_u64(address, compare, swap, Ordering::AcqRel) };
                found.unwrap_or_else(|found| found)
            }
        })
    }
}

/// The operation of an atomic request on its word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atomic {
    /// Fetch and add.
    Add(u64),
    /// Compare and swap.
    CompareSwap { compare: u64, swap: u64 },
}

/// The pieces that make up a frame's payload, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather<'a> {
    parts: &'a [Source<'a>],
    len: usize,
}

/// Storage for the pieces of a [`Gather`]: up to `N`.
pub(super) struct Scratch<'a, const N: usize> {
    parts: [Source<'a>; N],
    count: usize,
    len: usize,
}

impl<'a, const N: usize> Scratch<'a, N> {
    /// Creates storage without pieces.
    pub(super) const fn new() -> Self {
        Self { parts: [Source::EMPTY; N], count: 0, len: 0 }
    }

    /// Appends a piece; false if `N` pieces are stored already.
    pub(super) fn push(&mut self, source: Source<'a>) -> bool {
        let Some(part) = self.parts.get_mut(self.count) else { return false };
        *part = source;
        self.count += 1;
        self.len += source.len;
        true
    }

    /// Returns the stored pieces.
    pub(super) fn gather(&self) -> Gather<'_> {
        Gather { parts: &self.parts[..self.count], len: self.len }
    }
}

impl<'a> Gather<'a> {
    /// A gather without payload.
    pub(crate) const EMPTY: Self = Self { parts: &[], len: 0 };

    /// Creates a gather of one piece.
    pub(crate) const fn one(source: &'a Source<'a>) -> Self {
        Self { parts: core::slice::from_ref(source), len: source.len }
    }

    /// Creates a gather of several pieces.
    pub(crate) fn of(parts: &'a [Source<'a>]) -> Self {
        Self { parts, len: parts.iter().map(Source::len).sum() }
    }

    /// Returns the number of bytes of all pieces.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the pieces.
    pub(crate) const fn parts(&self) -> &'a [Source<'a>] {
        self.parts
    }

    /// Copies the bytes from `skip` on to the start of `target`, as many as fit.
    pub(crate) fn copy_rest(&self, mut skip: usize, target: Target<'_>) {
        let mut at = 0;
        for part in self.parts() {
            let left = part.len - skip.min(part.len);
            let rest = part.part(part.len - left, left);
            if let Some((rest, to)) = rest.zip(target.part(at, left.min(target.len - at))) {
                to.write(rest);
                at += to.len;
            }
            skip -= part.len - left;
        }
    }

    /// Copies all pieces to the start of `target`; the last bytes become visible last. If they do
    /// not fit, copies nothing and returns false.
    #[inline(always)]
    #[must_use]
    pub(crate) fn copy_to(&self, target: Target<'_>) -> bool {
        self.copy_by(target, Target::write)
    }

    /// Copies all pieces to the start of `target`, for a reader on another core. If they do not
    /// fit, copies nothing and returns false.
    #[inline(always)]
    #[must_use]
    pub(crate) fn copy_for_peer(&self, target: Target<'_>) -> bool {
        self.copy_by(target, Target::write_for_peer)
    }

    #[inline(always)]
    fn copy_by<'t>(&self, target: Target<'t>, write: impl Fn(&Target<'t>, Source<'_>)) -> bool {
        if self.len > target.len {
            return false;
        }
        if let [part] = self.parts {
            write(&target, *part);
            return true;
        }
        let mut at = 0;
        for part in self.parts() {
            if let Some(to) = target.part(at, part.len) {
                write(&to, *part);
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

// SAFETY: a region is an address and a length, which any thread may hold. Any thread may access the
// memory as invariants 1 and 2 say.
unsafe impl Send for Region {}

impl Region {
    /// Creates a region of the memory of a registration.
    ///
    /// # Safety
    ///
    /// Invariant 2 holds until the value is dropped; `len` is at most `isize::MAX`.
    pub(super) const unsafe fn new(ptr: *mut u8, len: usize, iova: u64, access: u32) -> Self {
        Self { ptr, len, iova, access }
    }

    /// Creates a region without bytes: the memory is foreign.
    pub(super) const fn empty(access: u32) -> Self {
        Self { ptr: core::ptr::null_mut(), len: 0, iova: 0, access }
    }

    /// Returns the rights of the region, `IBV_ACCESS_*`.
    pub(super) const fn access(&self) -> u32 {
        self.access
    }

    /// Returns the address that requests use for the region's first byte.
    pub(super) const fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the region's first byte in this process.
    pub(super) fn addr(&self) -> usize {
        self.ptr.addr()
    }

    /// Returns the offset in the region of `len` bytes at the request address `addr`, if they lie
    /// in the region.
    fn offset(&self, addr: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        (offset <= self.len && len <= self.len - offset).then_some(offset)
    }

    /// Returns the bytes at the request address `addr`, if they lie in the region.
    pub(super) fn source(&self, addr: u64, len: usize) -> Option<Source<'_>> {
        let offset = self.offset(addr, len)?;
        Some(Source { ptr: self.ptr.wrapping_add(offset), len, lives: PhantomData })
    }

    /// Returns the bytes at the request address `addr` for writing, if they lie in the region and
    /// the region may be written.
    pub(super) fn target(&self, addr: u64, len: usize) -> Option<Target<'_>> {
        let offset = self.offset(addr, len)?;
        (self.access & WRITES != 0).then(|| Target { ptr: self.ptr.wrapping_add(offset), len, lives: PhantomData })
    }
}

/// Memory shared with other processes, and the owner that keeps it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    ptr: *mut u8,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an area is an address and its owner. Any thread may access the bytes, by atomics only
// (invariants 1 and 3); the owner is itself Send and Sync.
unsafe impl Send for Area {}

impl Area {
    /// Creates an area of the `len` bytes at `ptr`, which `owner` keeps mapped.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` stay mapped, readable and writable, as long as `owner` lives; this
    /// process accesses them only by atomic accesses. `len` is at most `isize::MAX`.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, _owner: owner }
    }

    /// Returns the number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns `len` bytes from `offset` on for writing, if they lie in the area.
    pub(super) fn target(&self, offset: usize, len: usize) -> Option<Target<'_>> {
        Target { ptr: self.ptr, len: self.len, lives: PhantomData }.part(offset, len)
    }

    /// Returns `len` bytes from `offset` on for reading, if they lie in the area.
    pub(super) fn source(&self, offset: usize, len: usize) -> Option<Source<'_>> {
        Source { ptr: self.ptr, len: self.len, lives: PhantomData }.part(offset, len)
    }

    /// Returns the address of the word at `offset`, if an aligned word lies there.
    fn word(&self, offset: usize) -> Option<*mut u64> {
        let word = self.target(offset, 8)?.ptr.cast::<u64>();
        word.is_aligned().then_some(word)
    }

    /// Loads the word at `offset` with acquire ordering; returns 0 if no aligned word lies there.
    pub(super) fn load(&self, offset: usize) -> u64 {
        // SAFETY: `load_u64` requires an aligned, readable word: `word` returns only aligned words
        // that lie in the area (invariants 3 and 4). The area is accessed by atomics only.
        self.word(offset).map_or(0, |word| unsafe { word::load_u64(word, Ordering::Acquire) })
    }

    /// Stores the word at `offset` with release ordering; does nothing if no aligned word lies
    /// there.
    pub(super) fn store(&self, offset: usize, value: u64) {
        if let Some(word) = self.word(offset) {
            // SAFETY: `store_u64` requires an aligned, writable word: `word` returns only aligned
            // words that lie in the area (invariants 3 and 4). The area is accessed by atomics
            // only.
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
        // SAFETY: `from_raw` requires valid bytes: the 900 bytes from 10 on lie in the array, which
        // only this test accesses.
        let target = unsafe { Target::from_raw(ptr.wrapping_add(10), 900) };
        // SAFETY: `from_raw` requires valid bytes: the first 900 bytes lie in the same array.
        let source = unsafe { Source::from_raw(ptr, 900) };
        target.write(source);
        assert_eq!(bytes, [7; 1000]);
    }

    #[test]
    fn atomics_want_eight_aligned_bytes() {
        let mut words = [5_u64, 6];
        let ptr = words.as_mut_ptr().cast::<u8>();
        // SAFETY: `from_raw` requires valid bytes: these are the array's 16 bytes, which only this
        // test accesses.
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
        // SAFETY: `new` requires memory that outlives the region: the array does, and only this
        // test accesses it.
        let read_only = unsafe { Region::new(ptr, 64, u64::MAX - 64, 4) };
        assert!(read_only.source(u64::MAX - 64, 64).is_some());
        assert!(read_only.source(u64::MAX - 1, 2).is_none());
        assert!(read_only.source(u64::MAX - 65, 2).is_none());
        assert!(read_only.source(0, 1).is_none());
        assert!(read_only.target(u64::MAX - 64, 1).is_none());
        // SAFETY: `new` requires memory that outlives the region: the same array does. The two
        // regions are never used at once.
        let writable = unsafe { Region::new(ptr, 64, 0, 1) };
        assert!(writable.target(63, 1).is_some());
        assert!(writable.target(64, 0).is_some());
        assert!(writable.target(65, 0).is_none());
    }

    #[test]
    fn an_area_has_words_where_they_are_aligned() {
        let words = Arc::new([0_u64; 4].map(core::sync::atomic::AtomicU64::new));
        // SAFETY: `new` requires that the owner keeps the memory: the owner is the memory. The
        // memory is made of atomics.
        let area = unsafe { Area::new(words.as_ptr().cast::<u8>().cast_mut(), 32, Arc::clone(&words) as _) };
        area.store(8, 77);
        area.store(12, 1);
        area.store(32, 1);
        assert_eq!((area.load(8), area.load(12), area.load(32)), (77, 0, 0));
        assert!(area.source(24, 8).is_some() && area.source(25, 8).is_none() && area.target(0, 33).is_none());
    }
}
