//! The contracts of owners of a region's memory, and an owner that is taken apart.

use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{io, slice};

use super::placed::Placed;
use crate::error::{Error, ErrorKind, Result, Verb};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Host {}
    impl Sealed for super::Gpu {}
}

/// The place of memory: [`Host`] or [`Gpu`]. It is part of a buffer's type.
pub trait Placement: sealed::Sealed + Send + Sync + 'static {
    #[doc(hidden)]
    const IS_HOST: bool;
}

/// Memory that the processor can access: buffers deref to bytes.
#[derive(Debug, Clone, Copy)]
pub enum Host {}

/// Memory of a GPU. The processor must not touch it, so buffers give no `&[u8]` and no inline
/// sends.
#[derive(Debug, Clone, Copy)]
pub enum Gpu {}

impl Placement for Host {
    const IS_HOST: bool = true;
}

impl Placement for Gpu {
    const IS_HOST: bool = false;
}

/// An owner of memory that may be registered with a device.
///
/// Registration takes the owner apart ([`into_parts`](Self::into_parts)). After deregistration the
/// owner is put together again ([`from_parts`](Self::from_parts)), to be dropped or returned. In
/// between, only the device and the region access the memory.
///
/// # Safety
///
/// An implementation must guarantee, from `into_parts` until `from_parts` is called, or forever if
/// it is not called:
///
/// * The pointer is valid for reads and writes of the given length (on the GPU if `Placement` is
///   [`Gpu`]) and does not move. The map of a file is valid only if nobody, in any process, can
///   shorten the file: seal a memfd with `F_SEAL_SHRINK`. Only the code that received the pointer
///   accesses the memory or asserts unique access to it; work of a GPU may access GPU memory, to
///   which no reference exists. Until [`make_private`](Self::make_private) succeeds, other code may
///   access host memory too, by the functions of [`rdma_mem`] alone. Moving the parts must not
///   assert unique access either, so a `Box` must be taken apart into its raw pointer.
/// * Host memory is initialised.
/// * The device, peers and safe code may write any bytes: every value of every byte is valid for
///   whoever reads the memory meanwhile or afterwards.
/// * Dropping the parts without `from_parts` leaks the memory. It must not unmap, free or reuse the
///   memory, unless freeing is sound at that time (the device has no access any more when parts are
///   dropped).
pub unsafe trait MemoryOwner: Sized + Send + 'static {
    /// The place of the memory.
    type Placement: Placement;
    /// The rest of the owner while its memory is registered.
    type Parts: Send + 'static;

    /// Whether an access of the processor may fault, so that a software device has the kernel copy.
    #[doc(hidden)]
    const MAY_FAULT: bool = false;

    /// Takes the owner apart.
    fn into_parts(self) -> (NonNull<u8>, usize, Self::Parts);

    /// Puts the owner together again.
    ///
    /// # Safety
    ///
    /// The arguments were returned by one call of `into_parts`, which is undone at most once, and
    /// the device cannot access the memory any more. Other code that had access until
    /// `make_private` still has it, unless `make_private` has succeeded; the owner is then dropped
    /// or returned, and its contents are not lent.
    unsafe fn from_parts(address: NonNull<u8>, len: usize, parts: Self::Parts) -> Self;

    /// Ends every access to the memory other than the device's. Called before the contents are lent
    /// as bytes: when a local region is registered, and after an exposed one was deregistered.
    ///
    /// # Errors
    ///
    /// The reason why other access could not be ended: the contents are then not lent, and the
    /// owner is dropped or returned. `Unsupported` if other access to this memory can never be
    /// ended.
    fn make_private(_parts: &mut Self::Parts) -> io::Result<()> {
        Ok(())
    }
}

/// An owner of memory that nobody writes.
///
/// # Safety
///
/// An implementation must guarantee, while a region has the value or an [`Arc`](std::sync::Arc) of
/// it, or forever if it leaks:
///
/// * [`bytes`](Self::bytes) returns the same bytes at the same address, wherever the value itself
///   is moved to.
/// * Nobody writes to them: no code of this process, no other process, no device. The map of a file
///   needs a file that nobody writes or shortens.
pub unsafe trait SourceOwner: Sized + Send + 'static {
    /// Whether an access of the processor may fault, so that a software device has the kernel copy.
    #[doc(hidden)]
    const MAY_FAULT: bool = false;

    /// The memory.
    fn bytes(&self) -> &[u8];
}

/// The parts of an owner of any type.
trait AnyParts: Send {
    /// The type of the owner.
    fn owner_type(&self) -> TypeId;
    /// # Safety
    ///
    /// The contract of [`MemoryOwner::from_parts`].
    unsafe fn reassemble(self: Box<Self>, address: NonNull<u8>, len: usize) -> Box<dyn Any + Send>;
    fn make_private(&mut self) -> io::Result<()>;
}

struct Parts<O: MemoryOwner>(O::Parts);

impl<O: MemoryOwner> AnyParts for Parts<O> {
    fn owner_type(&self) -> TypeId {
        TypeId::of::<O>()
    }

    unsafe fn reassemble(self: Box<Self>, address: NonNull<u8>, len: usize) -> Box<dyn Any + Send> {
        // SAFETY: MemoryOwner::from_parts requires the results of one `into_parts`, once, and
        // memory that no device accesses: `reassemble` has the same contract, and `Box<Self>` is
        // consumed.
        Box::new(unsafe { O::from_parts(address, len, self.0) })
    }

    fn make_private(&mut self) -> io::Result<()> {
        O::make_private(&mut self.0)
    }
}

/// The owner of a source, whole: its bytes lie outside of it. In a box, so that moves of the parts
/// do not move the owner.
struct Source<O>(Box<O>);

impl<O: SourceOwner> AnyParts for Source<O> {
    fn owner_type(&self) -> TypeId {
        TypeId::of::<O>()
    }

    unsafe fn reassemble(self: Box<Self>, _: NonNull<u8>, _: usize) -> Box<dyn Any + Send> {
        self.0
    }

    fn make_private(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An owner of any type, taken apart.
pub(super) struct RawMemory {
    address: NonNull<u8>,
    len: usize,
    /// Whether an access of the processor may fault.
    may_fault: bool,
    placed: Placed,
    /// `Some` until drop or `reassemble`.
    parts: Option<Box<dyn AnyParts>>,
}

// SAFETY: the value owns its memory (the contract of MemoryOwner), and the parts are Send.
unsafe impl Send for RawMemory {}
// SAFETY: a shared reference gives the address, the length and the type of the owner alone; that of
// a `Memory` also gives `&[u8]` of memory that the value owns.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Takes an owner apart. Of a [`Memory`] it takes the contents, so that registering memory
    /// again and again does not nest.
    pub(super) fn new<O: MemoryOwner>(owner: O) -> Self {
        let mut owner = Some(owner);
        let any: &mut dyn Any = &mut owner;
        if let Some(raw) = any.downcast_mut::<Option<Memory<O::Placement>>>().and_then(Option::take) {
            return raw.raw;
        }
        let owner = owner.expect("only a `Memory` was taken out");
        let (address, len, parts) = owner.into_parts();
        Self {
            address,
            len,
            may_fault: O::MAY_FAULT,
            placed: Placed::default(),
            parts: Some(Box::new(Parts::<O>(parts))),
        }
    }

    /// The memory of a source.
    pub(super) fn of_source<O: SourceOwner>(owner: O) -> Self {
        let owner = Box::new(owner);
        let bytes = owner.bytes();
        let (address, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self { address, len, may_fault: O::MAY_FAULT, placed: Placed::default(), parts: Some(Box::new(Source(owner))) }
    }

    /// Memory that a caller has borrowed, and whose borrow ends after deregistration.
    pub(super) fn borrowed(address: NonNull<u8>, len: usize) -> Self {
        Self { address, len, may_fault: false, placed: Placed::default(), parts: None }
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn may_fault(&self) -> bool {
        self.may_fault
    }

    /// How the memory was allocated, as far as this crate did that.
    pub(super) fn placed(&self) -> Placed {
        self.placed
    }

    /// The same memory, with how it was allocated if that is given.
    pub(super) fn with_placed(mut self, placed: Option<Placed>) -> Self {
        self.placed = placed.unwrap_or(self.placed);
        self
    }

    /// Whether [`give_back`](Self::give_back) returns an owner of type `O` that is not a
    /// [`Memory`].
    pub(super) fn is_of<O: 'static>(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.owner_type() == TypeId::of::<O>())
    }

    /// The owner that [`new`](Self::new) took apart, whose type is `O`. The memory must not be
    /// registered, and if `O` is a [`Memory`], it must be private.
    ///
    /// # Panics
    ///
    /// If the owner is of another type.
    pub(super) fn give_back<O: MemoryOwner>(self) -> O {
        let mut memory = Some(Memory::<O::Placement> { raw: self, placement: PhantomData });
        let any: &mut dyn Any = &mut memory;
        if let Some(memory) = any.downcast_mut::<Option<O>>().and_then(Option::take) {
            return memory;
        }
        let owner = memory.and_then(|memory| memory.into_owner().ok());
        owner.expect("the caller knows the type of the owner")
    }

    /// The owner of a source that is not registered any more, whose type is `O`.
    ///
    /// # Panics
    ///
    /// If the owner is of another type.
    pub(super) fn give_back_source<O: SourceOwner>(mut self) -> O {
        let owner = self.reassemble().and_then(|owner| owner.downcast::<O>().ok());
        *owner.expect("the caller knows the type of the owner")
    }

    /// Ends every access to the memory but the device's: afterwards its contents may be lent.
    pub(super) fn make_private(&mut self) -> Result<()> {
        let Some(parts) = self.parts.as_mut() else { return Ok(()) };
        parts.make_private().map_err(|error| match (error.raw_os_error(), error.kind()) {
            (Some(errno), _) => Error::from_errno(Verb::MakePrivate, errno),
            (None, io::ErrorKind::Unsupported) => Error::new(Verb::MakePrivate, ErrorKind::NotSupported),
            (None, io::ErrorKind::OutOfMemory) => Error::new(Verb::MakePrivate, ErrorKind::OutOfMemory),
            (None, _) => Error::new(Verb::MakePrivate, ErrorKind::Unknown),
        })
    }

    fn reassemble(&mut self) -> Option<Box<dyn Any + Send>> {
        let parts = self.parts.take()?;
        // SAFETY: reassemble requires the results of one `into_parts`, once, and memory that no
        // device accesses: `parts` is taken out, so this happens once; a RawMemory is reassembled
        // only when it is not registered (M2).
        Some(unsafe { parts.reassemble(self.address, self.len) })
    }
}

impl Drop for RawMemory {
    fn drop(&mut self) {
        drop(self.reassemble());
    }
}

/// Memory that is not, or no longer, registered, with its contents.
///
/// The memory may be registered again, taken back as its owner with
/// [`into_owner`](Self::into_owner), or, on the host, used as bytes.
pub struct Memory<M: Placement = Host> {
    raw: RawMemory,
    placement: PhantomData<M>,
}

impl<M: Placement> Memory<M> {
    /// # Safety
    ///
    /// The memory is not registered, and lies where `M` says.
    pub(super) unsafe fn from_raw(raw: RawMemory) -> Self {
        Self { raw, placement: PhantomData }
    }

    /// The owner, as [`RawMemory::give_back`] returns it.
    pub(super) fn give_back<O: MemoryOwner>(self) -> O {
        self.raw.give_back()
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the owner, if its type is `O`.
    ///
    /// # Errors
    ///
    /// The owner, if it is of another type.
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
        // SAFETY: from_raw_parts requires `len` readable, initialised bytes, at most isize::MAX,
        // which nobody writes during the borrow: valid, initialised and not accessed by others by
        // the contract of MemoryOwner; not registered, so no device or peer writes them; one
        // allocation or mapping, so at most isize::MAX bytes.
        unsafe { slice::from_raw_parts(self.raw.address.as_ptr(), self.raw.len) }
    }
}

impl DerefMut for Memory<Host> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: from_raw_parts_mut requires valid, initialised bytes without other accesses: as
        // in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.raw.address.as_ptr(), self.raw.len) }
    }
}

// SAFETY: RawMemory holds a raw pointer, so moving it asserts nothing; the owner that it was made
// from guarantees the rest of MemoryOwner's contract.
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
