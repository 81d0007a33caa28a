//! Memory that work requests name: the engine's only module with `unsafe` code.
//!
//! # Invariants
//!
//! 1. A [`Source`] is readable for its lifetime, a [`Target`] readable and writable: whoever makes one from a raw pointer
//!    promises it. Others (threads, processes) may read and write the bytes meanwhile; so all access goes
//!    through `rdma_mem`, whose copies behave as relaxed atomic accesses, and no reference is ever made.
//! 2. A `Region` is readable, and writable if its access flags say so, from `register` to `deregister`: the caller of
//!    `register` promises it. Spans of a region borrow it, so none outlives it.
//! 3. An [`Area`] is readable and writable as long as its owner, which it holds, lives.

use core::fmt;
use core::marker::PhantomData;
use std::any::Any;
use std::sync::Arc;

use super::limits::MAX_SGE;

/// Bytes that may be read for `'a`, and may change meanwhile.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    ptr: *const u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

/// Bytes that may be read and written for `'a`, and may change meanwhile.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    ptr: *mut u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

impl<'a> Source<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: core::ptr::null(), len: 0, lives: PhantomData };

    /// The bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` stay readable for `'a`; nobody writes them but by atomic accesses, other processes, or
    /// accesses that are synchronised with this thread. `len` is at most `isize::MAX`.
    #[must_use]
    pub const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// The bytes of a slice.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
}

impl<'a> Target<'a> {
    /// The bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// As [`Source::from_raw`], and the bytes are writable, and nobody else accesses them but by atomic accesses, other
    /// processes, or accesses that are synchronised with this thread.
    #[must_use]
    pub const unsafe fn from_raw(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }
}

/// What a frame's payload is made of: up to `MAX_SGE` pieces, in order.
pub struct Gather<'a> {
    parts: [Source<'a>; MAX_SGE],
    count: usize,
    len: usize,
}

impl<'a> Gather<'a> {
    /// How many bytes in all.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces.
    #[must_use]
    pub fn parts(&self) -> &[Source<'a>] {
        &self.parts[..self.count]
    }

    /// Copies everything to the start of `target`; false, and nothing is copied, if it does not fit.
    #[must_use]
    pub fn copy_to(&self, target: Target<'_>) -> bool {
        let _ = target;
        todo!("skeleton")
    }
}

/// Memory shared with other processes, with what keeps it mapped.
#[derive(Clone)]
pub struct Area {
    ptr: *mut u8,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an area is an address and its owner; all access to the bytes is by atomics (invariants 1 and 3), and the owner is
// itself Send and Sync.
unsafe impl Send for Area {}

impl Area {
    /// The memory at `ptr`, kept by `owner`.
    ///
    /// # Safety
    ///
    /// `len` bytes at `ptr` (page aligned) stay mapped, readable and writable, as long as `owner` lives; nobody in this
    /// process accesses them but by atomic accesses. `len` is at most `isize::MAX`.
    #[must_use]
    pub unsafe fn new(ptr: *mut u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, owner }
    }

    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:p}, {})", self.ptr, self.len)
    }
}
impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({:p}, {})", self.ptr, self.len)
    }
}
impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts()).finish()
    }
}
impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({:p}, {})", self.ptr, self.len)
    }
}
