//! Sources: memory that devices and peers read, and that nobody writes.

use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit};

use super::buffer::resolve;
use super::memory::SourceOwner;
use super::options::RegisterOptions;
use super::pages::{self, Pages};
use super::remote::RemoteSlice;
use super::{Kind, Reach, Region, Segment};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::Handle;
use crate::pd::ProtectionDomain;
use crate::types::RemoteAccess;

macro_rules! slices {
    ($([$($bounds:tt)*] $owner:ty;)*) => { $(
        // SAFETY: SourceOwner requires bytes that stay in place and are not written: the elements
        // lie outside of the value, a `NoUninit` has no interior mutability, and safe code writes
        // to them only through an exclusive reference to the owner, or to all owners that share
        // them. The region has the owner, or one of them, and lends no such reference.
        unsafe impl<T: $($bounds)*> SourceOwner for $owner {
            fn bytes(&self) -> &[u8] {
                bytemuck::cast_slice(self)
            }
        }
    )* };
}
slices! {
    [NoUninit + Send] Vec<T>;
    [NoUninit + Send] Box<[T]>;
    [NoUninit + Send + Sync] Arc<[T]>;
    [NoUninit + Sync] &'static [T];
}

// SAFETY: SourceOwner requires bytes that stay in place and are not written: the owner promises
// that for as long as a region has an Arc of it, and nobody gets the owner out of that Arc.
unsafe impl<O: SourceOwner + Sync> SourceOwner for Arc<O> {
    const MAY_FAULT: bool = O::MAY_FAULT;

    fn bytes(&self) -> &[u8] {
        O::bytes(self)
    }
}

// SAFETY: SourceOwner requires bytes that stay in place and are not written: the mapping is
// private, and safe code writes to it only through an exclusive reference to the value.
unsafe impl SourceOwner for Pages {
    fn bytes(&self) -> &[u8] {
        self
    }
}

#[cfg(feature = "bytes")]
// SAFETY: SourceOwner requires bytes that stay in place and are not written: those of a `Bytes` do
// not change while a handle to them lives, and lie outside of it.
unsafe impl SourceOwner for bytes::Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Source that a value of another kind keeps valid: the read-only map of a file, a part of an
/// arena.
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// use std::ptr::NonNull;
///
/// use rdma::{RawSource, RemoteAccess};
///
/// // An arena whose front is filled, and will not be written again.
/// let arena: std::sync::Arc<[u8]> = vec![7; 4096].into();
/// // SAFETY: the Arc keeps the bytes in place, and nobody writes to them.
/// let front = unsafe { RawSource::new(NonNull::from(&arena[..]).cast(), 1024, arena) };
/// let source = pd.register_source(front, RemoteAccess::empty())?;
/// assert_eq!(source.len(), 1024);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RawSource<K> {
    at: NonNull<u8>,
    len: usize,
    keep_alive: K,
}

// SAFETY: the value gives shared references to bytes that nobody writes, and holds a value that is
// Send.
unsafe impl<K: Send> Send for RawSource<K> {}
// SAFETY: a shared reference gives shared references to bytes that nobody writes, and no access to
// `keep_alive`.
unsafe impl<K> Sync for RawSource<K> {}

impl<K: Send + 'static> RawSource<K> {
    /// Makes a source of `len` bytes.
    ///
    /// # Safety
    ///
    /// Until `keep_alive` is dropped or taken back, and forever if that never happens, the bytes
    /// are valid for reads, initialised, at most `isize::MAX`, stay in place, and nobody writes to
    /// them. For the map of a file this means that no process writes to the file or shortens it:
    /// an access behind its end raises `SIGBUS`, in this process and in its software device.
    pub unsafe fn new(at: NonNull<u8>, len: usize, keep_alive: K) -> Self {
        Self { at, len, keep_alive }
    }

    /// Gives back the value that keeps the memory valid.
    #[must_use]
    pub fn into_keep_alive(self) -> K {
        self.keep_alive
    }
}

// SAFETY: SourceOwner requires bytes that stay in place and are not written: the contract of
// `RawSource::new`.
unsafe impl<K: Send + 'static> SourceOwner for RawSource<K> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: from_raw_parts requires `len` readable, initialised bytes, at most isize::MAX,
        // which nobody writes during the borrow: the contract of `RawSource::new`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<K> fmt::Debug for RawSource<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSource").field("address", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Registers memory that is only read, without any right to write it: statics, shared slices,
    /// read-only maps. Peers may get the right to read it.
    ///
    /// [`SourceSlice::deregister`] returns the owner.
    ///
    /// # Errors
    ///
    /// With the owner: `InvalidInput` if it has no bytes; `InvalidOption` for other rights than
    /// [`RemoteAccess::READ`]; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
    /// use std::sync::Arc;
    ///
    /// use rdma::{RemoteAccess, op};
    ///
    /// let table: Arc<[f32]> = (0_u8..16).map(f32::from).collect();
    /// let source = pd.register_source(Arc::clone(&table), RemoteAccess::empty())?;
    ///
    /// // The same bytes may be in any number of requests, and the program reads them meanwhile.
    /// b.post_recv(pd.allocate(64)?, 0)?;
    /// a.post_send(op::send(source.clone()))?;
    /// assert_eq!(source.elements::<f32>()?, &table[..]);
    /// # let mut ended = 0;
    /// # while ended < 2 { poller.wait(None)?.expect("no time limit").status()?; ended += 1; }
    /// # drop(poller);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_source<O: SourceOwner>(&self, owner: O, access: RemoteAccess) -> Result<SourceSlice, Failed<O>> {
        self.register_source_with(owner, &RegisterOptions::new().remote_access(access))
    }

    /// Registers memory as [`register_source`](Self::register_source) does, with options, the right
    /// of peers among them.
    ///
    /// # Errors
    ///
    /// With the owner: options that a source may not have, or that the device lacks; otherwise as
    /// for [`register_source`](Self::register_source).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_source_with<O: SourceOwner>(
        &self,
        owner: O,
        options: &RegisterOptions,
    ) -> Result<SourceSlice, Failed<O>> {
        let region = Region::new(&self.inner, pages::of_source(owner), Kind::Source, options, Reach::Address);
        region.map(SourceSlice::whole).map_err(|(error, memory)| Failed::new(error, memory.give_back_source()))
    }
}

/// A range of registered memory that nobody writes: the local memory of sends and writes, and of no
/// receive, read or atomic operation.
///
/// Clones and slices share the region, which ends with the last of them. The bytes can be read at
/// any time.
pub struct SourceSlice {
    segment: Segment,
}

impl SourceSlice {
    /// Requires a region of a source.
    pub(super) fn whole(region: Arc<Handle<Region>>) -> Self {
        Self { segment: Segment::whole(region) }
    }

    /// # Safety
    ///
    /// The segment belongs to a source.
    pub(crate) unsafe fn from_segment(segment: Segment) -> Self {
        Self { segment }
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    getters! { |this|
        /// The address of the first byte, as the device sees it.
        address: u64 = this.segment.iova();
        /// The region's local key, for requests of a raw queue pair.
        lkey: u32 = this.segment.lkey();
        /// The operations that peers may do.
        access: RemoteAccess = this.segment.region.access;
    }

    /// A counted part of the range.
    ///
    /// # Errors
    ///
    /// `OutOfBounds`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// static GREETING: &[u8] = b"hello, world";
    ///
    /// let source = pd.register_source(GREETING, rdma::RemoteAccess::READ)?;
    /// assert_eq!(&source.slice(..5)?[..], b"hello");
    /// // For a peer to read.
    /// let advertised = source.remote(7..)?.to_bytes();
    /// # let _ = advertised;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.len()).ok_or(Error::new(Verb::Access, ErrorKind::OutOfBounds))?;
        // SAFETY: NonNull::add requires a result inside the allocation or one past its end: the
        // range lies in the slice, which lies in its region (M3).
        let pointer = unsafe { self.segment.pointer.add(range.start) };
        Ok(Self { segment: Segment { region: self.segment.region.clone(), pointer, len: range.len() } })
    }

    /// A part of the range for a peer to read, if the region has the right
    /// [`READ`](RemoteAccess::READ): send the returned value to the peer.
    ///
    /// # Errors
    ///
    /// `OutOfBounds`.
    pub fn remote(&self, range: impl RangeBounds<usize>) -> Result<RemoteSlice> {
        let slice = self.slice(range)?;
        Ok(RemoteSlice::new(slice.segment.iova(), slice.segment.len as u64, slice.segment.region.rkey))
    }

    /// The bytes as elements of type `T`.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::elements`](super::Buffer::elements).
    pub fn elements<T: AnyBitPattern>(&self) -> Result<&[T]> {
        bytemuck::try_cast_slice(self).map_err(|_| Error::new(Verb::Access, ErrorKind::InvalidInput))
    }

    /// Deregisters the memory and returns its owner.
    ///
    /// # Errors
    ///
    /// With the slice: `InUse` while there are other slices of the region, also in requests in
    /// flight; `InvalidInput` if the owner is not an `O`; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let source = pd.register_source(vec![1_u16, 2], rdma::RemoteAccess::empty())?;
    /// let other = source.clone();
    /// let failed = source.deregister::<Vec<u16>>().unwrap_err();
    /// assert_eq!(failed.error.kind(), rdma::ErrorKind::InUse);
    /// drop(other);
    /// assert_eq!(failed.object.deregister::<Vec<u16>>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister<O: SourceOwner>(self) -> Result<O, Failed<Self>> {
        let Segment { region, pointer, len } = self.segment;
        let region = region.into_arc();
        let this = |region: Arc<Handle<Region>>| Self { segment: Segment { region: region.into(), pointer, len } };
        if !region.memory.is_of::<O>() {
            return Err(Failed::new(Error::new(Verb::DeregisterMr, ErrorKind::InvalidInput), this(region)));
        }
        Handle::close(region).map(|region| region.memory.give_back_source()).map_err(|failed| failed.map(this))
    }
}

impl Clone for SourceSlice {
    fn clone(&self) -> Self {
        let Segment { region, pointer, len } = &self.segment;
        Self { segment: Segment { region: region.clone(), pointer: *pointer, len: *len } }
    }
}

impl Deref for SourceSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: from_raw_parts requires `len` readable, initialised bytes, at most isize::MAX,
        // which nobody writes during the borrow: they lie in the region (M3), whose owner lent them
        // as `&[u8]` and keeps them; nobody writes to a source (M7).
        unsafe { std::slice::from_raw_parts(self.segment.pointer.as_ptr(), self.segment.len) }
    }
}

impl AsRef<[u8]> for SourceSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SourceSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSlice")
            .field("address", &self.segment.pointer)
            .field("len", &self.segment.len)
            .finish_non_exhaustive()
    }
}
