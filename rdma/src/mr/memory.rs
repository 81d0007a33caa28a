//! What may own the memory of a region.

use std::alloc::{self, Layout};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::{io, slice};

use rdma_mem::SharedMemory;

use crate::error::{Error, ErrorKind, Operation, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Host {}
    impl Sealed for super::Gpu {}
}

/// Where memory lies: [`Host`] or [`Gpu`]. It is part of a buffer's type.
pub trait Placement: sealed::Sealed + Send + Sync + 'static {
    #[doc(hidden)]
    const IS_HOST: bool;
}

/// Memory that the processor reaches: buffers deref to bytes.
#[derive(Debug, Clone, Copy)]
pub enum Host {}

/// Memory of a GPU: the processor must not touch it, so there is no `&[u8]` and no inline send.
#[derive(Debug, Clone, Copy)]
pub enum Gpu {}

impl Placement for Host {
    const IS_HOST: bool = true;
}

impl Placement for Gpu {
    const IS_HOST: bool = false;
}

/// Something that owns memory which may be registered with a device.
///
/// Registration takes the owner apart ([`into_parts`](Self::into_parts)) and puts it together again
/// ([`from_parts`](Self::from_parts)) after deregistration, to drop it or to hand it back. In
/// between, only the device and the region touch the memory.
///
/// # Safety
///
/// For an implementation it must hold that, from `into_parts` until `from_parts` is called or for
/// ever:
///
/// * the pointer is valid for reads and writes of the given length (if `Placement` is [`Host`]; on
///   the GPU otherwise), does not move, and nothing but whoever got it accesses the memory or
///   asserts unique access to it: moving the parts must not assert it either, so a `Box` has to be
///   taken apart into its raw pointer;
/// * host memory is initialised;
/// * dropping the parts without `from_parts` leaks the memory, or at least does not unmap, free or
///   reuse it, unless the memory may be freed then (the device has no access any more when parts
///   are dropped).
///
/// `dma_buf`, if it returns one, names a dma-buf of this memory that stays open while the parts
/// live.
pub unsafe trait MemoryOwner: Sized + Send + 'static {
    /// Where the memory lies.
    type Placement: Placement;
    /// What is left of the owner while its memory is registered.
    type Parts: Send + 'static;

    /// Takes the owner apart.
    fn into_parts(self) -> (NonNull<u8>, usize, Self::Parts);

    /// Puts the owner together again.
    ///
    /// # Safety
    ///
    /// The arguments are what one call of `into_parts` returned, each such call is undone once at
    /// most, and neither device nor peers can access the memory any more.
    unsafe fn from_parts(address: NonNull<u8>, len: usize, parts: Self::Parts) -> Self;

    /// The memory as a dma-buf, and its offset in there, for memory that can only be registered
    /// that way.
    fn dma_buf(_parts: &Self::Parts) -> Option<(RawFd, u64)> {
        None
    }

    /// Called before the contents are lent as bytes (when a local region is registered, and after
    /// an exposed one was deregistered): cuts off whoever reaches the memory by other ways than the
    /// device.
    ///
    /// # Errors
    ///
    /// Whatever kept it from doing so: the contents are not lent then.
    fn make_private(_parts: &mut Self::Parts) -> io::Result<()> {
        Ok(())
    }
}

// SAFETY: Box::into_raw gives up the box's claim to unique access; the allocation stays valid and
// in place until from_raw; its bytes are initialised. The parts are nothing.
unsafe impl MemoryOwner for Box<[u8]> {
    type Placement = Host;
    type Parts = ();

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        let len = self.len();
        let pointer = Self::into_raw(self).cast::<u8>();
        // SAFETY: the pointer of a box is never null.
        (unsafe { NonNull::new_unchecked(pointer) }, len, ())
    }

    unsafe fn from_parts(address: NonNull<u8>, len: usize, (): ()) -> Self {
        // SAFETY: from Box::into_raw of a slice of this length, once (the caller's promise).
        unsafe { Self::from_raw(std::ptr::slice_from_raw_parts_mut(address.as_ptr(), len)) }
    }
}

// SAFETY: as for Box: a ManuallyDrop<Vec> is taken apart into its raw pointer, length and capacity.
// Only the initialised bytes are used.
unsafe impl MemoryOwner for Vec<u8> {
    type Placement = Host;
    type Parts = usize;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let mut this = ManuallyDrop::new(self);
        let (pointer, len, capacity) = (this.as_mut_ptr(), this.len(), this.capacity());
        // SAFETY: the pointer of a vector is never null.
        (unsafe { NonNull::new_unchecked(pointer) }, len, capacity)
    }

    unsafe fn from_parts(address: NonNull<u8>, len: usize, capacity: usize) -> Self {
        // SAFETY: the three came from one vector, once (the caller's promise).
        unsafe { Self::from_raw_parts(address.as_ptr(), len, capacity) }
    }
}

// SAFETY: SharedMemory holds an address, not a reference, so moving it asserts nothing; the mapping
// is initialised by the kernel and stays while the value lives. Others may have its file, but
// make_private cuts them off before references are made. Parts are the value itself.
unsafe impl MemoryOwner for SharedMemory {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        // SAFETY: the address of a mapping is never null.
        (unsafe { NonNull::new_unchecked(self.as_ptr()) }, self.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    fn make_private(parts: &mut Self) -> io::Result<()> {
        Ok(parts.make_private()?)
    }
}

/// Zeroed pages of their own, so that nothing else shares a page that a device has pinned.
pub(crate) struct Pages {
    address: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: an owned allocation.
unsafe impl Send for Pages {}

impl Pages {
    const ALIGN: usize = 4096;

    pub(crate) fn new(len: usize) -> Result<Self> {
        let error = Error::new(Operation::Allocate, ErrorKind::OutOfMemory);
        let size = len.max(1).checked_next_multiple_of(Self::ALIGN).ok_or(error)?;
        let layout = Layout::from_size_align(size, Self::ALIGN).map_err(|_| error)?;
        // SAFETY: the size is not zero.
        let address = unsafe { alloc::alloc_zeroed(layout) };
        Ok(Self { address: NonNull::new(address).ok_or(error)?, len, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed once.
        unsafe { alloc::dealloc(self.address.as_ptr(), self.layout) }
    }
}

// SAFETY: Pages holds a raw pointer, so moving it asserts nothing; the allocation is zeroed and
// lives as long as the value.
unsafe impl MemoryOwner for Pages {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.address, self.len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

/// The parts of any owner.
trait AnyParts: Send {
    /// # Safety
    ///
    /// As [`MemoryOwner::from_parts`].
    unsafe fn reassemble(self: Box<Self>, address: NonNull<u8>, len: usize) -> Box<dyn Any + Send>;
    fn dma_buf(&self) -> Option<(RawFd, u64)>;
    fn make_private(&mut self) -> io::Result<()>;
}

struct Parts<O: MemoryOwner>(O::Parts);

impl<O: MemoryOwner> AnyParts for Parts<O> {
    unsafe fn reassemble(self: Box<Self>, address: NonNull<u8>, len: usize) -> Box<dyn Any + Send> {
        // SAFETY: MemoryOwner::from_parts wants what `into_parts` returned, once, and no device or
        // peer left: `reassemble` has the same contract, and `Box<Self>` is consumed.
        Box::new(unsafe { O::from_parts(address, len, self.0) })
    }

    fn dma_buf(&self) -> Option<(RawFd, u64)> {
        O::dma_buf(&self.0)
    }

    fn make_private(&mut self) -> io::Result<()> {
        O::make_private(&mut self.0)
    }
}

/// Any owner, taken apart.
pub(super) struct RawMemory {
    address: NonNull<u8>,
    len: usize,
    /// Some until drop or `reassemble`.
    parts: Option<Box<dyn AnyParts>>,
}

// SAFETY: it owns its memory (the contract of MemoryOwner), and the parts are Send.
unsafe impl Send for RawMemory {}

impl RawMemory {
    /// Takes an owner apart. A [`Memory`] gives what is in it, so that registering again and again
    /// does not nest.
    pub(super) fn new<O: MemoryOwner>(owner: O) -> Self {
        let mut owner = Some(owner);
        let any: &mut dyn Any = &mut owner;
        if let Some(raw) = any.downcast_mut::<Option<Memory<O::Placement>>>().and_then(Option::take) {
            return raw.raw;
        }
        match owner.map(MemoryOwner::into_parts) {
            Some((address, len, parts)) => Self { address, len, parts: Some(Box::new(Parts::<O>(parts))) },
            None => Self { address: NonNull::dangling(), len: 0, parts: None },
        }
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn dma_buf(&self) -> Option<(RawFd, u64)> {
        self.parts.as_ref()?.dma_buf()
    }

    pub(super) fn make_private(&mut self) -> io::Result<()> {
        self.parts.as_mut().map_or(Ok(()), |parts| parts.make_private())
    }

    fn reassemble(&mut self) -> Option<Box<dyn Any + Send>> {
        let parts = self.parts.take()?;
        // SAFETY: `parts` were taken out, so this happens once, with what `into_parts` returned;
        // memory that is not registered (M2) is out of reach of devices and peers.
        Some(unsafe { parts.reassemble(self.address, self.len) })
    }
}

impl Drop for RawMemory {
    fn drop(&mut self) {
        drop(self.reassemble());
    }
}

/// Memory that is not registered (any more), with its contents: what a region leaves behind.
///
/// It may be registered again, taken back as its owner with [`into_owner`](Self::into_owner), or,
/// on the host, used as bytes.
pub struct Memory<M: Placement = Host> {
    raw: RawMemory,
    placement: PhantomData<M>,
}

// SAFETY: `&Memory` gives `&[u8]` of memory that it owns, and nothing of the parts.
unsafe impl<M: Placement> Sync for Memory<M> {}

impl<M: Placement> Memory<M> {
    /// # Safety
    ///
    /// The memory is not registered, and is where `M` says.
    pub(super) unsafe fn from_raw(raw: RawMemory) -> Self {
        Self { raw, placement: PhantomData }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The owner, if it is an `O`.
    ///
    /// # Errors
    ///
    /// The owner as it is, if it is of another type.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let buffer = pd.register(vec![1_u8, 2, 3])?;
    /// let vector: Vec<u8> = buffer.into_memory()?.into_owner().expect("it was a Vec");
    /// assert_eq!(vector, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owner<O: MemoryOwner>(mut self) -> Result<O, Box<dyn Any + Send>> {
        match self.raw.reassemble() {
            Some(owner) => owner.downcast::<O>().map(|owner| *owner),
            None => Err(Box::new(())),
        }
    }
}

impl Deref for Memory<Host> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: valid, initialised and touched by nobody else (the contract of MemoryOwner); not
        // registered, so no device or peer writes it; borrowed with `self`. It is one allocation or
        // mapping, so at most isize::MAX bytes.
        unsafe { slice::from_raw_parts(self.raw.address.as_ptr(), self.raw.len) }
    }
}

impl DerefMut for Memory<Host> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid, initialised and not registered, as `deref` argues; `self` is borrowed
        // exclusively.
        unsafe { slice::from_raw_parts_mut(self.raw.address.as_ptr(), self.raw.len) }
    }
}

// SAFETY: RawMemory holds a raw pointer, so moving it asserts nothing; the owner that it was made
// of promised the rest.
unsafe impl<M: Placement> MemoryOwner for Memory<M> {
    type Placement = M;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.raw.address, self.raw.len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

impl<M: Placement> fmt::Debug for Memory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("address", &self.raw.address).field("len", &self.raw.len).finish_non_exhaustive()
    }
}
