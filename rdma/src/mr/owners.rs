//! Memory owners: vectors, boxes, and memory that other processes map.

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
#[cfg(not(miri))]
use rdma_mem::SharedMemoryError;
use rdma_mem::{Segment, SharedMemory};

use super::memory::{Host, MemoryOwner};
#[cfg(not(miri))]
use crate::error::{Error, ErrorKind, Verb};

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: Box::into_raw gives up the box's claim; the allocation stays valid and in place until
// from_raw; `Pod` has no byte that is not initialised. The parts are the number of elements, which
// the length in bytes does not tell of a type of size 0.
unsafe impl<T: Pod + Send> MemoryOwner for Box<[T]> {
    type Placement = Host;
    type Parts = usize;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let (count, len) = (self.len(), size_of_val(&*self));
        let pointer = Self::into_raw(self).cast::<u8>();
        // SAFETY: new_unchecked requires a non-null pointer: a box's pointer is never null.
        (unsafe { NonNull::new_unchecked(pointer) }, len, count)
    }

    unsafe fn from_parts(address: NonNull<u8>, _: usize, count: usize) -> Self {
        let elements = address.as_ptr().cast::<T>();
        // SAFETY: Box::from_raw requires a pointer from Box::into_raw, once, to valid elements:
        // `into_parts` made it of a slice of `count` elements, this function's contract allows one
        // call, and whatever a device has written is a value of a `Pod`.
        unsafe { Self::from_raw(std::ptr::slice_from_raw_parts_mut(elements, count)) }
    }
}

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: a ManuallyDrop<Vec> is taken apart into its raw pointer, length and capacity, and only
// the initialised elements are used; `Pod` has no byte that is not initialised.
unsafe impl<T: Pod + Send> MemoryOwner for Vec<T> {
    type Placement = Host;
    /// Length and capacity in elements.
    type Parts = (usize, usize);

    fn into_parts(self) -> (NonNull<u8>, usize, (usize, usize)) {
        let mut this = ManuallyDrop::new(self);
        let (pointer, len) = (this.as_mut_ptr().cast::<u8>(), size_of_val(this.as_slice()));
        // SAFETY: new_unchecked requires a non-null pointer: a vector's pointer is never null.
        (unsafe { NonNull::new_unchecked(pointer) }, len, (this.len(), this.capacity()))
    }

    unsafe fn from_parts(address: NonNull<u8>, _: usize, (len, capacity): (usize, usize)) -> Self {
        // SAFETY: Vec::from_raw_parts requires the parts of one vector, once, and valid elements:
        // `into_parts` took them from one vector, this function's contract allows one call, and
        // whatever a device has written is a value of a `Pod`.
        unsafe { Self::from_raw_parts(address.as_ptr().cast(), len, capacity) }
    }
}

#[cfg(feature = "bytes")]
// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: a BytesMut holds an address, so moving it asserts nothing; its `len` bytes are
// initialised, and stay where they are while it is not used; the other handles to its allocation
// have other bytes. The parts are the value itself.
unsafe impl MemoryOwner for bytes::BytesMut {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(mut self) -> (NonNull<u8>, usize, Self) {
        let (start, len) = (self.as_mut_ptr(), self.len());
        // SAFETY: new_unchecked requires a non-null pointer: that of a slice never is null.
        (unsafe { NonNull::new_unchecked(start) }, len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

/// The error of memory that could not be made. A refusal names the system call: it concerns no
/// device.
#[cfg(not(miri))]
#[cold]
pub(super) fn refused(error: &SharedMemoryError) -> Error {
    let failure = Error::from_errno(Verb::Allocate, error.raw_os_error().unwrap_or(libc::ENOMEM));
    match (error, failure.kind()) {
        (SharedMemoryError::System { call, .. }, ErrorKind::PermissionDenied | ErrorKind::NotSupported) => {
            failure.with_kind(ErrorKind::RefusedCall(call))
        }
        _ => failure,
    }
}

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: SharedMemory holds an address, not a reference, so moving it asserts nothing; the kernel
// initialises the mapping, which stays while the value lives. Other processes may have its file,
// but make_private ends their access before references are made. The parts are the value itself.
unsafe impl MemoryOwner for SharedMemory {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        // SAFETY: new_unchecked requires a non-null pointer: the address of a mapping is never
        // null.
        (unsafe { NonNull::new_unchecked(self.as_ptr()) }, self.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    fn make_private(parts: &mut Self) -> io::Result<()> {
        Ok(parts.make_private()?)
    }
}

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: a Segment holds the address of a mapping that the kernel initialises and that stays while
// the value lives. Other holders of the Arc, and processes that map the segment, access it as
// rdma_mem does; make_private always fails, so references are never made. The parts are the value
// itself.
unsafe impl MemoryOwner for Arc<Segment> {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        let start = self.bytes().as_mut_ptr();
        // SAFETY: new_unchecked requires a non-null pointer: the address of a mapping is never
        // null.
        (unsafe { NonNull::new_unchecked(start) }, self.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    /// Fails: whoever has mapped the segment reads it for as long as it wants.
    fn make_private(_: &mut Self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
