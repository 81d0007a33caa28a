//! Creating local regions, and lending parts of buffers to scopes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;

use super::buffer::{Buffer, resolve};
use super::memory::{Host, MemoryOwner};
use super::options::RegisterOptions;
use super::pages::{self, Pages};
use super::pool::Home;
use super::{Kind, Reach, Region};
use crate::error::{Failed, Result, Verb};
use crate::pd::{PdInner, ProtectionDomain};

impl ProtectionDomain {
    /// Allocates zeroed, page-aligned memory and registers it for the local device only. Returns
    /// one buffer of `len` bytes, to be split as needed: one region for many buffers is much
    /// cheaper than a region for each.
    ///
    /// # Errors
    ///
    /// No memory; `InvalidInput` if no bytes are asked for; the memlock limit is too low.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut rest = pd.allocate(64 * 1024)?;
    /// let messages: Vec<rdma::Buffer> = (0..16).map(|_| rest.split_to(4096)).collect();
    /// assert!(rest.is_empty());
    /// # let _ = messages;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.allocate_with(len, &RegisterOptions::new())
    }

    /// Allocates and registers memory as [`allocate`](Self::allocate) does, with options: huge
    /// pages, a NUMA node, threads that allocate the pages.
    ///
    /// # Errors
    ///
    /// Options that local memory may not have, or that the device or the system lacks; otherwise as
    /// for [`allocate`](Self::allocate) and [`Pages::with_options`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let opened = rdma::open(&rdma::DeviceSelector::Any)?;
    /// # let pd = opened.context.alloc_pd()?;
    /// use rdma::RegisterOptions;
    ///
    /// let mut options = RegisterOptions::new().touch_threads(4);
    /// // The node of the device, if it has one.
    /// if let Some(node) = opened.context.device().numa_node() {
    ///     options = options.numa_node(node);
    /// }
    /// let buffer = pd.allocate_with(1 << 20, &options)?;
    /// # let _ = buffer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_with(&self, len: usize, options: &RegisterOptions) -> Result<Buffer> {
        Ok(self.register_with(Pages::with_options(len, options)?, options)?)
    }

    /// Registers memory with its owner for the local device only.
    ///
    /// [`Buffer::deregister`] returns the owner. Shared memory is made private first: peers that
    /// have mapped it keep the old pages. GPU memory is registered by its address, as by
    /// [`register_peer_memory`](Self::register_peer_memory).
    ///
    /// # Errors
    ///
    /// With the owner: `InvalidInput` if it has no bytes; errors of the device, most often because
    /// the memlock limit is too low. `NotSupported` of [`MakePrivate`](crate::Verb::MakePrivate):
    /// others keep their access to the memory, as to a [`Segment`](rdma_mem::Segment). Shared
    /// memory that the device refuses has been made private, and stays so.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let buffer = pd.register(vec![7_u8; 4096])?;
    /// assert_eq!(buffer[0], 7);
    /// let vector: Vec<u8> = buffer.deregister()?;
    /// assert_eq!(vector.len(), 4096);
    ///
    /// // A failure gives the owner back, too.
    /// let failed = pd.register(Vec::<u8>::with_capacity(4096)).unwrap_err();
    /// assert_eq!((failed.error.kind(), failed.object.capacity()), (rdma::ErrorKind::InvalidInput, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<O: MemoryOwner>(&self, owner: O) -> Result<Buffer<O::Placement>, Failed<O>> {
        self.register_with(owner, &RegisterOptions::new())
    }

    /// Registers memory as [`register`](Self::register) does, with options.
    ///
    /// # Errors
    ///
    /// With the owner: options that local memory may not have, or that the device lacks; otherwise
    /// as for [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&"soft0".parse()?)?.context.alloc_pd()?;
    /// use rdma::{ErrorKind, Prefetch, RegisterOptions, RemoteAccess};
    ///
    /// // No page is pinned; those of the first kilobyte are to be there all the same.
    /// let options = RegisterOptions::new().on_demand(true);
    /// let mut buffer = match pd.register_with(vec![0_u8; 1 << 20], &options) {
    ///     Ok(buffer) => buffer,
    ///     Err(failed) if matches!(failed.error.kind(), ErrorKind::UnsupportedOption(_)) => {
    ///         pd.register(failed.object)?
    ///     }
    ///     Err(failed) => return Err(failed.into()),
    /// };
    /// let head = buffer.split_to(1024);
    /// head.prefetch(Prefetch::Write)?;
    ///
    /// // Peers do not reach local memory.
    /// let options = RegisterOptions::new().remote_access(RemoteAccess::READ);
    /// let failed = pd.register_with(vec![0_u8; 64], &options).unwrap_err();
    /// assert!(failed.error.to_string().contains("remote_access"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_with<O: MemoryOwner>(
        &self,
        owner: O,
        options: &RegisterOptions,
    ) -> Result<Buffer<O::Placement>, Failed<O>> {
        let mut memory = pages::take_apart(owner);
        let kind = Kind::local::<O::Placement>();
        // Buffers lend references, so no other process may have the memory mapped; other processes
        // may have obtained SharedMemory's file. Private memory stays so: check first.
        let checked = Region::check(&self.inner, &memory, Verb::RegisterMr)
            .and_then(|()| options.check(&self.inner, &memory, kind));
        if let Err(error) = checked.and_then(|()| memory.make_private()) {
            return Err(Failed::new(error, memory.give_back()));
        }
        let region = Region::new(&self.inner, memory, kind, options, Reach::Address);
        // `Buffer::whole` requires a region of `M`'s kind: the kind was made from the placement.
        region.map(Buffer::whole).map_err(|(error, memory)| Failed::new(error, memory.give_back()))
    }
}

impl Buffer<Host> {
    /// Lends bytes to the device, to read, for the duration of a [scope](crate::QueuePair::scope).
    ///
    /// # Panics
    ///
    /// If the range does not lie in the buffer, as when indexing a slice.
    #[must_use]
    #[track_caller]
    pub fn lend(&self, range: impl RangeBounds<usize>) -> LentSlice<'_> {
        LentSlice::new(self, resolve(range, self.len()).expect("the range lies in the buffer"))
    }

    /// Lends bytes to the device, to write, for the duration of a [scope](crate::QueuePair::scope).
    ///
    /// # Panics
    ///
    /// If the range does not lie in the buffer, as when indexing a slice.
    #[must_use]
    #[track_caller]
    pub fn lend_mut(&mut self, range: impl RangeBounds<usize>) -> LentSliceMut<'_> {
        let range = resolve(range, self.len()).expect("the range lies in the buffer");
        LentSliceMut::new(self, range)
    }
}

/// A view of a [`Buffer`]'s bytes for the device to read during a [scope](crate::QueuePair::scope).
#[derive(Clone, Copy)]
pub struct LentSlice<'a> {
    pub(crate) lent: Lent,
    buffer: PhantomData<&'a [u8]>,
}

/// A view of a [`Buffer`]'s bytes for the device to write during a
/// [scope](crate::QueuePair::scope).
pub struct LentSliceMut<'a> {
    pub(crate) lent: Lent,
    buffer: PhantomData<&'a mut [u8]>,
}

/// The data that a request needs of lent bytes.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) pointer: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) lkey: u32,
    pub(crate) domain: *const PdInner,
    /// The other keys of a pool's buffer.
    home: Option<NonNull<Home>>,
}

// SAFETY: the fields are an address, a length, a key, a domain that is only compared, and a `Home`
// that is only read and is Sync. The slice types that contain a `Lent` borrow the bytes, so moving
// one to another thread is like moving `&[u8]` or `&mut [u8]`.
unsafe impl Send for Lent {}
// SAFETY: a shared `Lent` gives copies of its fields and no access to the bytes.
unsafe impl Sync for Lent {}

impl Lent {
    /// Bytes of a region that is no pool's.
    pub(super) fn of_key(pointer: NonNull<u8>, len: usize, lkey: u32, domain: *const PdInner) -> Self {
        Self { pointer, len, lkey, domain, home: None }
    }

    /// The memory of a whole region.
    pub(super) fn whole(region: &Region) -> Self {
        let &Region { address, len, lkey, domain, .. } = region;
        Self { pointer: address, len, lkey, domain, home: None }
    }

    /// A part, whose range must lie in the memory.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        // SAFETY: NonNull::add requires a result inside the allocation or one past its end: the
        // caller checked the range against the length of memory that lies in its region (M3).
        let pointer = unsafe { self.pointer.add(range.start) };
        Self { pointer, len: range.len(), ..self }
    }

    fn new(buffer: &Buffer<Host>, range: Range<usize>) -> Self {
        let segment = buffer.segment();
        // SAFETY: NonNull::add requires a result inside the allocation or one past its end: the
        // caller checked the range against the buffer's length, and the buffer lies in its region
        // (M3).
        let pointer = unsafe { segment.pointer.add(range.start) };
        let home = segment.region.home.as_ref().map(NonNull::from);
        Self { pointer, len: range.len(), lkey: segment.lkey(), domain: segment.domain(), home }
    }

    /// The local key in another domain than its own.
    #[cold]
    pub(crate) fn lkey_in(&self, domain: *const PdInner) -> Option<u32> {
        // SAFETY: as_ref requires a valid value: it lies in the buffer's region, which the buffer
        // keeps, and the slice type that contains `self` borrows the buffer.
        unsafe { self.home?.as_ref() }.lkey_in(domain)
    }
}

impl<'a> LentSlice<'a> {
    /// Requires bytes that are borrowed for `'a`.
    pub(super) fn of_lent(lent: Lent) -> Self {
        Self { lent, buffer: PhantomData }
    }

    /// Requires that `range` lies in the buffer.
    fn new(buffer: &'a Buffer<Host>, range: Range<usize>) -> Self {
        Self { lent: Lent::new(buffer, range), buffer: PhantomData }
    }
}

impl<'a> LentSliceMut<'a> {
    /// Requires bytes that are borrowed exclusively for `'a`.
    pub(super) fn of_lent(lent: Lent) -> Self {
        Self { lent, buffer: PhantomData }
    }

    /// Requires that `range` lies in the buffer.
    fn new(buffer: &'a mut Buffer<Host>, range: Range<usize>) -> Self {
        Self { lent: Lent::new(buffer, range), buffer: PhantomData }
    }

    /// Splits the view at `at`, or at its end if that is nearer.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.lent.len);
        // SAFETY: NonNull::add requires a result inside the allocation or one past its end: `at` is
        // at most the length of a view that lies in the region (M3).
        let pointer = unsafe { self.lent.pointer.add(at) };
        let back = Lent { pointer, len: self.lent.len - at, ..self.lent };
        let front = Lent { len: at, ..self.lent };
        (Self { lent: front, buffer: PhantomData }, Self { lent: back, buffer: PhantomData })
    }
}

impl fmt::Debug for LentSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentSlice").field("len", &self.lent.len).finish_non_exhaustive()
    }
}

impl fmt::Debug for LentSliceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentSliceMut").field("len", &self.lent.len).finish_non_exhaustive()
    }
}
