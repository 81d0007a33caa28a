//! Exposed regions: memory that peers may read or write.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_mem::SharedSliceMut;

use super::buffer::resolve;
use super::memory::{Host, Memory, MemoryOwner, Placement, RawMemory};
use super::options::RegisterOptions;
use super::pages::{self, Pages};
#[cfg(not(miri))]
use super::placed::Placed;
use super::remote::RemoteSlice;
use super::{Kind, Reach, Region, Segment};
use crate::error::{Error, ErrorKind, Failed, Result, Verb, gives_back};
use crate::handle::Handle;
use crate::pd::ProtectionDomain;
use crate::types::{AtomicCapability, RemoteAccess};

impl ProtectionDomain {
    /// Allocates zeroed memory that peers may access, and registers it. Each region has shared
    /// memory of its own, so that a peer on this host can access the region without this process's
    /// help.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no rights or no bytes are asked for; no memory; the memlock limit is too
    /// low.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::RemoteAccess;
    ///
    /// let table = pd.allocate_exposed(1 << 16, RemoteAccess::READ)?;
    /// table.copy_in(0, b"version 1")?;
    /// // To be sent to the peers, which read it at any time.
    /// let advertised = table.remote(..)?.to_bytes();
    /// # let _ = advertised;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_exposed(&self, len: usize, access: RemoteAccess) -> Result<ExposedRegion> {
        self.allocate_exposed_with(len, &RegisterOptions::new().remote_access(access))
    }

    /// Allocates and registers memory as [`allocate_exposed`](Self::allocate_exposed) does, with
    /// options: a chosen address, huge pages, a NUMA node, threads that allocate the pages.
    ///
    /// Memory of huge pages is not shared: a peer on this host reaches it with this process's help.
    ///
    /// # Errors
    ///
    /// Options that contradict each other, or that the device or the system lacks; otherwise as for
    /// [`allocate_exposed`](Self::allocate_exposed) and [`Pages::with_options`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::{RegisterOptions, RemoteAccess};
    ///
    /// // Peers name bytes by their offsets.
    /// let options = RegisterOptions::new().remote_access(RemoteAccess::READ).iova(0);
    /// let table = pd.allocate_exposed_with(4096, &options)?;
    /// assert_eq!(table.remote(100..)?.address(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn allocate_exposed_with(&self, len: usize, options: &RegisterOptions) -> Result<ExposedRegion> {
        if len == 0 || options.access().is_empty() {
            return Err(Error::new(Verb::Allocate, ErrorKind::InvalidInput));
        }
        // Miri has no memfd.
        #[cfg(not(miri))]
        if options.huge_pages.is_none() {
            let memory = rdma_mem::SharedMemory::new(len).map_err(|error| super::owners::refused(&error))?;
            let memory = RawMemory::new(memory);
            if let Some(node) = options.numa_node {
                pages::bind(memory.address(), memory.len(), node)?;
            }
            let placed = Placed { numa_node: options.numa_node, ..memory.placed() };
            return self.expose(memory.with_placed(Some(placed)), options).map_err(|(error, _)| error);
        }
        Ok(self.register_exposed_with(Pages::with_options(len, options)?, options)?)
    }

    /// Registers memory with its owner, and lets peers access it.
    ///
    /// [`deregister`](ExposedRegion::deregister) returns the owner, and
    /// [`revoke`](ExposedRegion::revoke) the contents. Without rights, memory is registered that
    /// only this device and other holders of the memory access: a mapping that processes share, or
    /// an owner of several regions.
    ///
    /// # Errors
    ///
    /// With the owner: `InvalidInput` if it has no bytes; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::RemoteAccess;
    ///
    /// let region = pd.register_exposed(vec![0_u8; 4096].into_boxed_slice(), RemoteAccess::WRITE)?;
    /// assert_eq!(region.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_exposed<O>(&self, owner: O, access: RemoteAccess) -> Result<ExposedRegion, Failed<O>>
    where
        O: MemoryOwner<Placement = Host>,
    {
        self.register_exposed_with(owner, &RegisterOptions::new().remote_access(access))
    }

    /// Registers memory as [`register_exposed`](Self::register_exposed) does, with options, the
    /// rights of peers among them.
    ///
    /// # Errors
    ///
    /// With the owner: options that the memory may not have, or that the device lacks; otherwise as
    /// for [`register_exposed`](Self::register_exposed).
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::{Pages, RegisterOptions, RemoteAccess};
    ///
    /// // Peers write blocks, and tell by a message when they have written one.
    /// let options = RegisterOptions::new().remote_access(RemoteAccess::WRITE).relaxed_ordering(true);
    /// let blocks = pd.register_exposed_with(Pages::new(1 << 20)?, &options)?;
    /// # let _ = blocks;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn register_exposed_with<O>(&self, owner: O, options: &RegisterOptions) -> Result<ExposedRegion, Failed<O>>
    where
        O: MemoryOwner<Placement = Host>,
    {
        let region = self.expose(pages::take_apart(owner), options);
        region.map_err(|(error, memory)| Failed::new(error, memory.give_back()))
    }

    /// Requires host memory.
    fn expose(&self, memory: RawMemory, options: &RegisterOptions) -> Result<ExposedRegion, (Error, RawMemory)> {
        Region::new(&self.inner, memory, Kind::ExposedHost, options, Reach::Address).map(ExposedRegion::new)
    }
}

/// Memory that peers may access while we use it.
///
/// References into the region do not exist, because its contents may change at any time. Bytes are
/// copied in and out, and aligned words are loaded and stored atomically. A copy out of a range
/// that a peer writes at the same time may mix old and new bytes.
///
/// The contents of a region in GPU memory ([`Gpu`](super::Gpu)) cannot be accessed from here at
/// all: its slices are only posted, and its ranges given to peers. A receive on a device of mlx5
/// takes GPU memory only with `MLX5_SCATTER_TO_CQE=0` in the environment: otherwise the provider
/// copies short messages to it with the processor.
///
/// # Examples
///
/// ```
/// use rdma::RemoteAccess;
/// # let opened = rdma::open(&rdma::DeviceSelector::Any)?;
/// # let pd = opened.context.alloc_pd()?;
/// let region = pd.allocate_exposed(4096, RemoteAccess::READ | RemoteAccess::WRITE)?;
/// region.copy_in(0, b"hello")?;
/// let key_for_the_peer = region.remote(0..5)?.to_bytes();
/// // ...and when the peer is to have no access any more:
/// let memory = region.revoke()?;
/// assert_eq!(&memory[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExposedRegion<M: Placement = Host> {
    region: Arc<Handle<Region>>,
    placement: PhantomData<M>,
}

/// A counted range of an [`ExposedRegion`]: the local side of a request, or a range to copy from
/// and to.
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// # use rdma::RemoteAccess;
/// let region = pd.allocate_exposed(4096, RemoteAccess::READ)?;
/// let slice = region.slice(..1024)?;
/// let failed = region.revoke().unwrap_err();
/// assert_eq!(failed.error.kind(), rdma::ErrorKind::InUse, "the slice keeps it");
/// drop(slice);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExposedSlice<M: Placement = Host> {
    segment: Segment,
    placement: PhantomData<M>,
}

impl<M: Placement> Clone for ExposedSlice<M> {
    fn clone(&self) -> Self {
        let Segment { region, pointer, len } = &self.segment;
        let segment = Segment { region: region.clone(), pointer: *pointer, len: *len };
        Self { segment, placement: PhantomData }
    }
}

/// The methods for memory of any placement.
macro_rules! ranges {
    ($whole:expr) => {
        /// The number of bytes.
        #[must_use]
        pub fn len(&self) -> usize {
            $whole(self).1
        }

        /// Whether the range has no bytes.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// The address of the first byte, in this program.
        #[must_use]
        pub fn address(&self) -> u64 {
            $whole(self).0.as_ptr().addr() as u64
        }

        /// A counted part of the range. It keeps the region from being revoked.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// let slot = region.slice(64..128)?;
        /// slot.copy_in(0, b"the slot's first bytes")?;
        /// assert_eq!(slot.len(), 64);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<ExposedSlice<M>> {
            let range = resolve(range, self.len()).ok_or(Error::new(Verb::Access, ErrorKind::OutOfBounds))?;
            let pointer = $whole(self).0.map_addr(|address| address.saturating_add(range.start));
            let segment = Segment { region: Arc::clone(self.region()).into(), pointer, len: range.len() };
            Ok(ExposedSlice { segment, placement: PhantomData })
        }

        /// A part of the range for a peer to access: send the returned value to the peer.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// let slot = region.remote(64..128)?;
        /// // 21 bytes that tell the peer where to read and write.
        /// assert_eq!(rdma::RemoteSlice::from_bytes(&slot.to_bytes())?.len(), 64);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn remote(&self, range: impl RangeBounds<usize>) -> Result<RemoteSlice> {
            let slice = self.slice(range)?;
            Ok(RemoteSlice::new(slice.segment.iova(), slice.segment.len as u64, slice.segment.region.rkey))
        }

        /// The operations that peers may do.
        #[must_use]
        pub fn access(&self) -> RemoteAccess {
            self.region().access
        }

        /// The region's local key, for requests of a raw queue pair.
        #[must_use]
        pub fn lkey(&self) -> u32 {
            self.region().lkey
        }
    };
}

/// The methods that access the contents, which need host memory.
macro_rules! contents {
    ($whole:expr) => {
        /// Copies bytes in at `offset`.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// region.copy_in(16, b"hello")?;
        /// assert!(region.copy_in(4095, b"hello").is_err(), "out of bounds");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
            let to = self.place(offset, bytes.len())?;
            // SAFETY: copy requires two valid ranges that do not overlap: `place` checked that `to`
            // lies in the region (M1, M3), which `self` keeps alive; `bytes` is borrowed, and
            // references into an exposed region do not exist (M5), so the two cannot overlap.
            unsafe { rdma_mem::copy(to, bytes.as_ptr(), bytes.len()) };
            Ok(())
        }

        /// Copies bytes out from `offset`.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// region.copy_in(0, b"hello")?;
        /// let mut bytes = [0; 5];
        /// region.copy_out(0, &mut bytes)?;
        /// assert_eq!(&bytes, b"hello");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
            let from = self.place(offset, bytes.len())?;
            // SAFETY: copy requires two valid ranges that do not overlap: `place` checked that
            // `from` lies in the region (M1, M3); `bytes` is borrowed exclusively, and no reference
            // into an exposed region exists (M5), so the two cannot overlap.
            unsafe { rdma_mem::copy(bytes.as_mut_ptr(), from, bytes.len()) };
            Ok(())
        }

        /// The bytes, for the copies and vector reductions of [`rdma_mem`].
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// region.bytes().slice(0..5)?.copy_from(b"hello"[..].into())?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[must_use]
        pub fn bytes(&self) -> SharedSliceMut<'_> {
            let (pointer, len) = $whole(self);
            // SAFETY: from_raw requires bytes that are readable and writable, without plain
            // accesses, for the borrow of `self`: they lie in the region (M1, M3), which `self`
            // keeps alive, and no reference into it exists (M5).
            unsafe { SharedSliceMut::from_raw(pointer.as_ptr(), len) }
        }

        /// Sets `len` bytes from `offset` to `value`.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// region.fill(0, 4096, 0xff)?;
        /// let mut bytes = [0; 1];
        /// region.copy_out(4095, &mut bytes)?;
        /// assert_eq!(bytes, [0xff]);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<()> {
            self.place(offset, len)?;
            let pattern = [value; 4096];
            let mut done = 0;
            while done < len {
                let step = (len - done).min(pattern.len());
                self.copy_in(offset + done, &pattern[..step])?;
                done += step;
            }
            Ok(())
        }

        /// Loads the 8 bytes at `offset` in one access, with the `Ordering` of an atomic load. With
        /// `Acquire`, once this thread has seen a flag or a completion, the writes that the peer
        /// made before it are visible too.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`; `InvalidInput` if the address is not a multiple of 8, or if the ordering
        /// is not one of a load.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// use std::sync::atomic::Ordering;
        ///
        /// // A flag that a peer writes behind its data.
        /// if region.load_u64(4088, Ordering::Acquire)? != 0 {
        ///     println!("the data is there");
        /// }
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64> {
            if matches!(order, Ordering::Release | Ordering::AcqRel) {
                return Err(Error::new(Verb::Access, ErrorKind::InvalidInput));
            }
            let word = self.word(offset)?;
            // SAFETY: load_u64 requires a valid, aligned word with only atomic accesses: `word`
            // checked bounds (M1, M3) and alignment, and M5 makes all accesses atomic.
            Ok(unsafe { rdma_mem::word::load_u64(word, order) })
        }

        /// Stores 8 bytes at `offset` in one access.
        ///
        /// # Errors
        ///
        /// `OutOfBounds`; `InvalidInput` if the address is not a multiple of 8, or if the ordering
        /// is not one of a store.
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
        /// # let region = pd.allocate_exposed(4096, RemoteAccess::all())?;
        /// use std::sync::atomic::Ordering;
        ///
        /// region.store_u64(8, 42, Ordering::Release)?;
        /// assert_eq!(region.load_u64(8, Ordering::Acquire)?, 42);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<()> {
            if matches!(order, Ordering::Acquire | Ordering::AcqRel) {
                return Err(Error::new(Verb::Access, ErrorKind::InvalidInput));
            }
            let word = self.word(offset)?;
            // SAFETY: store_u64 requires a valid, aligned word with only atomic accesses: `word`
            // checked bounds (M1, M3) and alignment, and M5 makes all accesses atomic.
            unsafe { rdma_mem::word::store_u64(word, value, order) };
            Ok(())
        }

        /// Adds to the 8 bytes at `offset` and returns the old value, atomically with the device's
        /// atomics.
        ///
        /// # Errors
        ///
        /// `NotSupported` if the device's atomics are not atomic with the processor's; otherwise as
        /// for [`load_u64`](Self::load_u64).
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
        /// # let region = context.alloc_pd()?.allocate_exposed(4096, RemoteAccess::all())?;
        /// use rdma::AtomicCapability;
        ///
        /// if context.capabilities().atomics == AtomicCapability::GLOBAL {
        ///     assert_eq!(region.fetch_add_u64(0, 1)?, 0);
        /// }
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64> {
            let word = self.atomic_word(offset)?;
            // SAFETY: fetch_add_u64 requires a valid, aligned word with only atomic accesses:
            // `atomic_word` checked bounds (M1, M3), alignment, and that the device's atomics are
            // atomic with the processor's; M5 covers all other accesses.
            Ok(unsafe { rdma_mem::word::fetch_add_u64(word, value, Ordering::AcqRel) })
        }

        /// Replaces the 8 bytes at `offset` by `new` if they equal `current`, atomically with the
        /// device's atomics. Returns the old value: as `Ok` if it was replaced, as `Err` if it
        /// differed.
        ///
        /// # Errors
        ///
        /// As for [`fetch_add_u64`](Self::fetch_add_u64).
        ///
        /// # Examples
        ///
        /// ```
        /// # use rdma::RemoteAccess;
        /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
        /// # let region = context.alloc_pd()?.allocate_exposed(4096, RemoteAccess::all())?;
        /// use rdma::AtomicCapability;
        ///
        /// if context.capabilities().atomics == AtomicCapability::GLOBAL {
        ///     assert_eq!(region.compare_exchange_u64(0, 0, 7)?, Ok(0));
        ///     assert_eq!(region.compare_exchange_u64(0, 0, 8)?, Err(7));
        /// }
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>> {
            let word = self.atomic_word(offset)?;
            // SAFETY: compare_exchange_u64 requires a valid, aligned word with only atomic
            // accesses: `atomic_word` checked bounds (M1, M3), alignment, and that the device's
            // atomics are atomic with the processor's; M5 covers all other accesses.
            Ok(unsafe { rdma_mem::word::compare_exchange_u64(word, current, new, Ordering::AcqRel) })
        }

        /// The address of `len` bytes at `offset`, if they lie in the range.
        #[inline]
        fn place(&self, offset: usize, len: usize) -> Result<*mut u8> {
            let (pointer, whole) = $whole(self);
            if offset > whole || len > whole - offset {
                return Err(Error::new(Verb::Access, ErrorKind::OutOfBounds));
            }
            // SAFETY: add requires a result inside the allocation or one past its end: `offset` is
            // at most the length, and the whole lies in the region (M1, M3).
            Ok(unsafe { pointer.as_ptr().add(offset) })
        }

        #[inline]
        fn word(&self, offset: usize) -> Result<*mut u64> {
            let word = self.place(offset, size_of::<u64>())?.cast::<u64>();
            if !word.is_aligned() {
                return Err(Error::new(Verb::Access, ErrorKind::InvalidInput));
            }
            Ok(word)
        }

        fn atomic_word(&self, offset: usize) -> Result<*mut u64> {
            if self.region().pd.context.capabilities().atomics != AtomicCapability::GLOBAL {
                return Err(Error::new(Verb::Access, ErrorKind::NotSupported));
            }
            self.word(offset)
        }
    };
}

impl ExposedRegion<Host> {
    contents!(|this: &Self| (this.region.address, this.region.len));

    /// Copies bytes in at `offset` that a peer, and not this processor, reads next: long copies
    /// pass the caches where that is faster.
    ///
    /// # Errors
    ///
    /// `OutOfBounds` if the bytes do not fit.
    pub fn copy_in_for_peer(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.place(offset, bytes.len())?;
        // SAFETY: copy_for_peer requires two valid ranges that do not overlap: `place` checked
        // that `to` lies in the region (M1, M3), which `self` keeps alive; `bytes` is borrowed,
        // and references into an exposed region do not exist (M5), so the two cannot overlap.
        unsafe { rdma_mem::copy_for_peer(to, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

impl<M: Placement> ExposedRegion<M> {
    ranges!(|this: &Self| (this.region.address, this.region.len));

    /// Requires an exposed region of `M`'s kind.
    pub(super) fn new(region: Arc<Handle<Region>>) -> Self {
        debug_assert_eq!(region.kind, Kind::exposed::<M>());
        Self { region, placement: PhantomData }
    }

    #[inline]
    pub(super) fn region(&self) -> &Arc<Handle<Region>> {
        &self.region
    }

    /// Ends all access by peers and returns the memory.
    ///
    /// To change the rights or the domain of a region, revoke it and register the memory again.
    /// `ibv_rereg_mr` is not used, because it may invalidate the keys that peers hold even when it
    /// fails.
    ///
    /// # Errors
    ///
    /// With the region: `InUse` while slices of it exist, also in requests in flight; errors of the
    /// device. Without the region, of the operation [`MakePrivate`](Verb::MakePrivate): the
    /// region is deregistered, but the contents cannot be lent as bytes, and the owner is dropped.
    /// `NotSupported` if others keep their access, as to a [`Segment`](rdma_mem::Segment), whose
    /// clones of the `Arc` stay usable; `OutOfMemory` if there is no memory for a private copy.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// # use rdma::RemoteAccess;
    /// let region = pd.allocate_exposed(4096, RemoteAccess::WRITE)?;
    /// // ... peers write ...
    /// let memory = region.revoke()?;
    /// let again = pd.register_exposed(memory, RemoteAccess::READ)?;
    /// assert_eq!(again.access(), RemoteAccess::READ);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(self) -> Result<Memory<M>, RevokeError<M>> {
        let region = match Handle::close(self.region) {
            Ok(region) => region,
            Err(Failed { error, object: region }) => {
                return Err(RevokeError { error, region: Some(Self::new(region)) });
            }
        };
        let mut memory = region.memory;
        // The contents of memory that is not private are never lent; dropping its owner is what a
        // drop of the region does.
        memory.make_private().map_err(|error| RevokeError { error, region: None })?;
        // SAFETY: from_raw requires memory that is not registered and lies where `M` says: the
        // region is deregistered (M2) and private now, and was of `M`'s kind.
        Ok(unsafe { Memory::from_raw(memory) })
    }

    /// Ends all access by peers and returns the owner, as it is: memory that others access stays
    /// theirs, too.
    ///
    /// # Errors
    ///
    /// With the region: `InUse` while slices of it exist, also in requests in flight;
    /// `InvalidInput` if the owner is not an `O` (a [`Memory`] was registered as its own owner);
    /// errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// # use rdma::RemoteAccess;
    /// use std::sync::Arc;
    ///
    /// use rdma::mem::Segment;
    ///
    /// let segment = Arc::new(Segment::new(4096)?);
    /// let region = pd.register_exposed(Arc::clone(&segment), RemoteAccess::READ)?;
    /// // Other processes may have mapped it, so its bytes are never lent: `revoke` would fail.
    /// let back: Arc<Segment> = region.deregister()?;
    /// assert!(Arc::ptr_eq(&segment, &back));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister<O: MemoryOwner<Placement = M>>(self) -> Result<O, Failed<Self>> {
        if !self.region.memory.is_of::<O>() {
            return Err(Failed::new(Error::new(Verb::DeregisterMr, ErrorKind::InvalidInput), self));
        }
        // `give_back` requires a Memory to be private: `is_of` finds no Memory.
        Handle::close(self.region).map(|region| region.memory.give_back()).map_err(|failed| failed.map(Self::new))
    }
}

impl ExposedSlice<Host> {
    contents!(|this: &Self| (this.segment.pointer, this.segment.len));
}

impl<M: Placement> ExposedSlice<M> {
    ranges!(|this: &Self| (this.segment.pointer, this.segment.len));

    #[inline]
    fn region(&self) -> &Arc<Handle<Region>> {
        &self.segment.region
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Whether the region belongs to this protection domain: only queue pairs of its domain access
    /// it.
    #[must_use]
    pub fn is_of_domain(&self, pd: &ProtectionDomain) -> bool {
        self.segment.domain() == pd.inner.identity()
    }

    /// The slice for requests that write it and do not read it.
    #[must_use]
    pub fn into_sink(self) -> SinkSlice<M> {
        SinkSlice(self)
    }

    /// # Safety
    ///
    /// The segment belongs to an exposed region of `M`'s kind.
    pub(crate) unsafe fn from_segment(segment: Segment) -> Self {
        Self { segment, placement: PhantomData }
    }
}

/// A slice of an exposed region that is the memory of receives, reads and atomic operations, and of
/// no send or write. Completions, and posts that are refused, return the [`ExposedSlice`].
///
/// # Examples
///
/// ```
/// # use rdma::{ExposedRegion, QueuePair};
/// # use rdma::transport::Rc;
/// # fn f(qp: &mut QueuePair<Rc>, region: &ExposedRegion) -> Result<(), rdma::Error> {
/// qp.post_recv(region.slice(..64)?.into_sink(), 7)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct SinkSlice<M: Placement = Host>(ExposedSlice<M>);

impl<M: Placement> SinkSlice<M> {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the slice has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn slice(&self) -> &ExposedSlice<M> {
        &self.0
    }

    pub(crate) fn into_slice(self) -> ExposedSlice<M> {
        self.0
    }
}

impl<M: Placement> fmt::Debug for ExposedRegion<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region { address, len, access, .. } = &**self.region;
        let mut f = f.debug_struct("ExposedRegion");
        f.field("address", address).field("len", len).field("access", access).finish_non_exhaustive()
    }
}

impl<M: Placement> fmt::Debug for ExposedSlice<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { pointer, len, .. } = &self.segment;
        f.debug_struct("ExposedSlice").field("address", pointer).field("len", len).finish_non_exhaustive()
    }
}

/// The error of revoking a region.
#[non_exhaustive]
pub struct RevokeError<M: Placement = Host> {
    /// The reason of the failure.
    pub error: Error,
    /// The region, if it is unchanged; `None` if it is deregistered and its owner was dropped.
    pub region: Option<ExposedRegion<M>>,
}

gives_back!(RevokeError<M: Placement>);
