//! The shared memory of one link: two rings, one each way, and each side's `asleep` flag and pulse.
//!
//! ```text
//! 0              CONTROL             CONTROL + capacity       CONTROL + 2 capacity
//! | words         | frames of ring 0  | frames of ring 1       |
//! ```
//!
//! Every word has two cache lines of its own, so that neither neighbouring words nor the
//! adjacent-line prefetcher cause false sharing between the two sides.
//!
//! # Safety
//!
//! 1. [`Memory`] maps `CONTROL + 2 * capacity` bytes, page aligned, readable and writable, as long
//!    as it lives. The [`Ring`]s and [`Flag`]s hold the `Arc` of the memory that they point into.
//! 2. All access is atomic: control words through `AtomicU64`, header words through relaxed
//!    `AtomicU64`, payloads through `rdma_mem` by the code that gets a pointer. The peer may write
//!    anything at any time; such a write is no data race, because the peer is another process.
//! 3. Every offset is checked against the capacity, which is this side's own number, before the
//!    offset is used.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdma_mem::{Mapping, SharedMemoryError};

use super::ring::{MIN_CAPACITY, Region, Span};

/// Bytes before the first ring's frames.
const CONTROL: usize = 4096;
/// Bytes reserved for each control word.
const WORD_STRIDE: usize = 128;
/// The largest ring that this side maps for a peer.
pub(crate) const MAX_CAPACITY: usize = 8 << 20;
/// Bytes of a ring that are allocated at first: two frames of the largest payload that a link sends
/// (see [`Outbound::max_payload`](crate::engine::Outbound::max_payload)), so that one frame always
/// fits before or behind the other.
const FIRST: usize = (128 << 10) + 4096;

const HEAD: usize = 0;
const WAITS: usize = 1;
const RING_WORDS: usize = 2;
const ASLEEP: usize = 2 * RING_WORDS;
const PULSE: usize = ASLEEP + 2;

/// Which side of a link this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that created the memory.
    Opener,
    /// The side that received the memory.
    Acceptor,
}

/// The memory of one link.
#[derive(Debug)]
pub(crate) struct Memory {
    pages: Mapping,
    capacity: usize,
}

/// One side's view of a link's memory.
#[derive(Debug)]
pub(crate) struct Ends {
    /// The ring that this side writes.
    pub(crate) out: Ring,
    /// The ring that this side reads.
    pub(crate) inbound: Ring,
    /// Set while this side sleeps.
    pub(crate) asleep: Flag,
    /// Set while the peer sleeps.
    pub(crate) peer_asleep: Flag,
    /// Counts how often this side has looked for frames.
    pub(crate) pulse: Flag,
    /// Counts how often the peer has looked for frames.
    pub(crate) peer_pulse: Flag,
}

impl Memory {
    /// Creates the memory of a link with two rings of `capacity` bytes. Also returns the file to
    /// send to the peer.
    pub(crate) fn create(capacity: usize) -> Result<(Arc<Self>, OwnedFd), SharedMemoryError> {
        let (pages, file) = Mapping::create(Self::size(capacity)?)?;
        Ok((Self::of(pages, capacity)?, file))
    }

    /// Maps the memory that the opener of a link sent.
    pub(crate) fn open(fd: BorrowedFd<'_>, capacity: usize) -> Result<Arc<Self>, SharedMemoryError> {
        Self::of(Mapping::map_sparse(fd, Self::size(capacity)?)?, capacity)
    }

    fn of(pages: Mapping, capacity: usize) -> Result<Arc<Self>, SharedMemoryError> {
        let this = Self { pages, capacity };
        let first = FIRST.min(capacity);
        this.pages.allocate(0, CONTROL + first)?;
        this.pages.allocate(CONTROL + capacity, first)?;
        Ok(Arc::new(this))
    }

    /// Bytes of the memory; an error for a capacity that is not accepted from a peer.
    fn size(capacity: usize) -> Result<usize, SharedMemoryError> {
        let is_valid = capacity.is_power_of_two() && capacity as u64 >= MIN_CAPACITY && capacity <= MAX_CAPACITY;
        is_valid
            .then_some(CONTROL + 2 * capacity)
            .ok_or(SharedMemoryError::Untrusted("is a ring of an impossible size"))
    }

    /// The rings and words of the link, as `side` uses them.
    pub(crate) fn ends(self: &Arc<Self>, side: Side) -> Ends {
        let (mine, theirs) = match side {
            Side::Opener => (0, 1),
            Side::Acceptor => (1, 0),
        };
        Ends {
            out: self.ring(mine),
            inbound: self.ring(theirs),
            asleep: self.flag(ASLEEP + mine),
            peer_asleep: self.flag(ASLEEP + theirs),
            pulse: self.flag(PULSE + mine),
            peer_pulse: self.flag(PULSE + theirs),
        }
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.pages.as_ptr()).unwrap_or(NonNull::dangling())
    }

    fn word(&self, index: usize) -> NonNull<AtomicU64> {
        debug_assert!(index * WORD_STRIDE < CONTROL);
        // SAFETY: `add` requires an offset within the mapping: an index is at most PULSE + 1, so
        // the word lies in the control page (1).
        unsafe { self.base().add(index * WORD_STRIDE) }.cast()
    }

    fn flag(self: &Arc<Self>, index: usize) -> Flag {
        Flag { word: self.word(index), _memory: Arc::clone(self) }
    }

    fn ring(self: &Arc<Self>, index: usize) -> Ring {
        Ring {
            head: self.word(RING_WORDS * index + HEAD),
            waits: self.word(RING_WORDS * index + WAITS),
            // SAFETY: `add` requires an offset within the mapping: ring 0 begins at CONTROL, ring 1
            // `capacity` bytes further (1).
            frames: unsafe { self.base().add(CONTROL + index * self.capacity) },
            capacity: self.capacity,
            index,
            memory: Arc::clone(self),
        }
    }
}

/// One shared flag.
#[derive(Debug)]
pub(crate) struct Flag {
    word: NonNull<AtomicU64>,
    _memory: Arc<Memory>,
}

// SAFETY: another thread may use the pointer: the value keeps the memory mapped (1), and all access
// is atomic (2).
unsafe impl Send for Flag {}

impl Flag {
    /// The shared word.
    #[inline]
    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: as_ref requires an aligned, valid pointer for the life of the reference: the word
        // lies in the mapping that `self` keeps (1), at a multiple of WORD_STRIDE from the
        // page-aligned base; an atomic may be shared (2).
        unsafe { self.word.as_ref() }
    }
}

/// The memory of one ring.
#[derive(Debug)]
pub(crate) struct Ring {
    head: NonNull<AtomicU64>,
    waits: NonNull<AtomicU64>,
    frames: NonNull<u8>,
    capacity: usize,
    index: usize,
    memory: Arc<Memory>,
}

// SAFETY: another thread may use the pointers: the value keeps the memory mapped (1), and all
// access is atomic (2).
unsafe impl Send for Ring {}

impl Ring {
    /// The first byte of a payload. `span.len` bytes from there are readable and writable while the
    /// ring lives.
    ///
    /// # Panics
    ///
    /// If the span is not within the ring, which the ring's protocol rules out.
    #[inline]
    pub(crate) fn payload(&self, span: Span) -> *mut u8 {
        let at = self.checked(span.at, span.len as usize);
        // SAFETY: `add` requires an offset within the mapping: `checked` keeps `at` within the
        // ring's frames (3), which are in the mapping (1).
        unsafe { self.frames.add(at) }.as_ptr()
    }

    /// The word at byte offset `at`, a multiple of 8 within the ring.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at % 8 == 0 && at < self.capacity);
        // SAFETY: `add` requires an offset within the mapping: every caller has checked that the
        // word is within the ring's frames (3), which are in the mapping (1).
        let word = unsafe { self.frames.add(at) };
        // SAFETY: as_ref requires an aligned, valid pointer for the life of the reference: the word
        // is mapped while the ring lives (1), aligned because `at` is a multiple of 8, and only
        // accessed atomically (2).
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }

    #[inline]
    fn checked(&self, at: u64, len: usize) -> usize {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        assert!(at <= self.capacity && len <= self.capacity - at, "a span outside of its ring");
        at
    }
}

impl Region for Ring {
    type Word = AtomicU64;

    #[inline]
    fn prefix(&self, at: u64) -> &AtomicU64 {
        self.word(self.checked(at, 8))
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: as_ref requires an aligned, valid pointer for the life of the reference: an
        // aligned control word in the mapping that `self` keeps (1), accessed atomically (2).
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn waits(&self) -> &AtomicU64 {
        // SAFETY: as_ref requires an aligned, valid pointer for the life of the reference: an
        // aligned control word in the mapping that `self` keeps (1), accessed atomically (2).
        unsafe { self.waits.as_ref() }
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    fn allocated(&self) -> u64 {
        FIRST.min(self.capacity) as u64
    }

    fn allocate(&self, end: u64) -> bool {
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(self.capacity);
        self.memory.pages.allocate(CONTROL + self.index * self.capacity, end).is_ok()
    }

    #[inline]
    fn read(&self, at: u64, words: &mut [u64]) {
        let at = self.checked(at, size_of_val(words));
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.word(at + 8 * i).load(Ordering::Relaxed);
        }
    }

    #[inline]
    fn write(&self, at: u64, words: &[u64]) {
        let at = self.checked(at, size_of_val(words));
        for (i, word) in words.iter().enumerate() {
            self.word(at + 8 * i).store(*word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn prefetch(&self, at: u64) {
        let at = self.checked(at, 8);
        // SAFETY: `add` requires an offset within the mapping: `checked` keeps `at` within the
        // ring's frames (3), which are in the mapping (1).
        let line = unsafe { self.frames.add(at) };
        // SAFETY: the intrinsic requires a processor with the instruction: every x86-64 has it. The
        // prefetch changes nothing that a program can observe, and never faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>());
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    #[inline]
    fn prefetch_for_write(&self, at: u64) {
        let at = self.checked(at, 8);
        // SAFETY: `add` requires an offset within the mapping: `checked` keeps `at` within the
        // ring's frames (3), which are in the mapping (1).
        let line = unsafe { self.frames.add(at) };
        // Inline assembly, because the intrinsic emits PREFETCHW only for targets with that feature
        // enabled.
        // SAFETY: PREFETCHW changes neither memory nor flags and never faults; a processor without
        // PREFETCHW executes it as a no-op.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
