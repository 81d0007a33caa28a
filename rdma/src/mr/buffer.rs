//! Buffers: exclusive, owned pieces of local regions.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::slice;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, Pod};

use super::memory::{Host, Memory, MemoryOwner, Placement};
use super::{Kind, Region, Segment};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::Handle;
use crate::pd::ProtectionDomain;

/// An exclusive piece of registered memory.
///
/// No peer has any right to a buffer's memory, and no two buffers overlap. Host buffers deref to
/// bytes. Posting moves a buffer into the queue and its completion returns it, so the program
/// cannot touch the memory while the device does. Splitting and joining buffers copies nothing,
/// like `BytesMut`. Dropping a region's last buffer deregisters the region and frees its memory.
///
/// # Examples
///
/// ```
/// # let opened = rdma::open(&rdma::DeviceSelector::Any)?;
/// # let pd = opened.context.alloc_pd()?;
/// let mut buffer = pd.allocate(4096)?;
/// let mut header = buffer.split_to(64);
/// header[..5].copy_from_slice(b"hello");
/// assert_eq!((header.len(), buffer.len()), (64, 4032));
/// header.unsplit(buffer).expect("they were one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer<M: Placement = Host> {
    segment: Segment,
    placement: PhantomData<M>,
}

impl<M: Placement> Buffer<M> {
    /// # Safety
    ///
    /// The segment belongs to a local region of `M`'s kind, and overlaps no other segment (M4).
    #[inline]
    pub(crate) unsafe fn from_segment(segment: Segment) -> Self {
        Self { segment, placement: PhantomData }
    }

    /// A buffer of a whole local region of `M`'s kind; the region must have no segments yet.
    pub(super) fn whole(region: Arc<Handle<Region>>) -> Self {
        debug_assert_eq!(region.kind, Kind::local::<M>());
        // SAFETY: from_segment requires a segment of `M`'s kind that overlaps no other: the region
        // is of `M`'s kind, and has no other segment.
        unsafe { Self::from_segment(Segment::whole(region)) }
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.segment.len
    }

    /// Whether the buffer has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segment.len == 0
    }

    getters! { |this|
        /// The address of the first byte, as the device sees it.
        address: u64 = this.segment.iova();
        /// The region's local key, for requests of a raw queue pair. A program that polls the bytes
        /// in place of completions registers them without
        /// [relaxed ordering](crate::RegisterOptions::relaxed_ordering).
        lkey: u32 = this.segment.lkey();
    }

    /// The local key in a domain: of a [`Pool`](super::Pool)'s buffer in any domain of the pool,
    /// and of others in their region's.
    #[must_use]
    pub fn lkey_in(&self, pd: &ProtectionDomain) -> Option<u32> {
        let domain = pd.inner.identity();
        if std::ptr::eq(self.segment.domain(), domain) { Some(self.lkey()) } else { self.segment.lkey_in(domain) }
    }

    /// Splits off and returns the first `at` bytes, or all bytes if there are fewer.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut buffer = pd.allocate(100)?;
    /// let front = buffer.split_to(60);
    /// assert_eq!((front.len(), buffer.len()), (60, 40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "what was cut off is given up otherwise"]
    pub fn split_to(&mut self, at: usize) -> Self {
        let at = at.min(self.len());
        let front = Segment { region: self.segment.region.clone(), pointer: self.segment.pointer, len: at };
        // By address: GPU memory belongs to no allocation of the language. Nothing saturates,
        // because `at` is at most the length, and the segment lies in its region (M3).
        self.segment.pointer = self.segment.pointer.map_addr(|address| address.saturating_add(at));
        self.segment.len -= at;
        // SAFETY: from_segment requires a segment of `M`'s kind that overlaps no other: the region
        // is the same, and `self` no longer has these bytes (M4).
        unsafe { Self::from_segment(front) }
    }

    /// Splits off and returns the bytes after the first `at`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut buffer = pd.allocate(100)?;
    /// let back = buffer.split_off(60);
    /// assert_eq!((buffer.len(), back.len()), (60, 40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "what was cut off is given up otherwise"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let front = self.split_to(at);
        std::mem::replace(self, front)
    }

    /// Drops the bytes after the first `len`. Their memory is freed with the region's last buffer.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut message = pd.allocate(4096)?;
    /// message[..5].copy_from_slice(b"hello");
    /// message.truncate(5);
    /// assert_eq!(&message[..], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn truncate(&mut self, len: usize) {
        self.segment.len = self.segment.len.min(len);
    }

    /// Joins two adjacent buffers: `other` must start where this one ends, in the same region.
    ///
    /// # Errors
    ///
    /// Returns `other` if it is not adjacent.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut buffer = pd.allocate(100)?;
    /// let back = buffer.split_off(60);
    /// buffer.unsplit(back).expect("it lies directly behind");
    /// assert_eq!(buffer.len(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unsplit(&mut self, other: Self) -> Result<(), Self> {
        let adjacent = self.segment.pointer.as_ptr().wrapping_add(self.segment.len) == other.segment.pointer.as_ptr();
        if !adjacent || !Arc::ptr_eq(&self.segment.region, &other.segment.region) {
            return Err(other);
        }
        self.segment.len += other.segment.len;
        Ok(())
    }

    /// Deregisters the region and returns its owner, if this buffer is the region's only one.
    ///
    /// # Errors
    ///
    /// Returns the buffer: as for [`into_memory`](Self::into_memory), and `InvalidInput` if the
    /// owner is not an `O` (a [`Memory`] was registered as its own owner).
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let buffer = pd.register(vec![0.5_f32; 1024])?;
    /// let failed = buffer.deregister::<Vec<u32>>().unwrap_err();
    /// let floats: Vec<f32> = failed.object.deregister()?;
    /// assert_eq!(floats.len(), 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister<O: MemoryOwner<Placement = M>>(self) -> Result<O, Failed<Self>> {
        if !self.segment.region.memory.is_of::<O>() {
            return Err(Failed::new(Error::new(Verb::DeregisterMr, ErrorKind::InvalidInput), self));
        }
        self.into_memory().map(Memory::give_back)
    }

    /// Deregisters the region and returns its memory, if this buffer is the region's only one.
    ///
    /// # Errors
    ///
    /// Returns the buffer: `InUse` if it does not span its region, if the region has other buffers,
    /// or if it is a [`Pool`](super::Pool)'s; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut buffer = pd.allocate(64)?;
    /// buffer[0] = 1;
    /// let memory = buffer.into_memory()?;
    /// assert_eq!(memory[0], 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_memory(self) -> Result<Memory<M>, Failed<Self>> {
        let in_use = Error::new(Verb::DeregisterMr, ErrorKind::InUse);
        let region = &self.segment.region;
        let is_whole = self.segment.pointer == region.address && self.segment.len == region.len;
        // The memory of a chunk is its pool's.
        if !is_whole || region.home.is_some() {
            return Err(Failed::new(in_use, self));
        }
        match Handle::close(self.segment.region.into_arc()) {
            // SAFETY: from_raw requires memory that is not registered and lies where `M` says: the
            // region was just deregistered (M2), and was of `M`'s kind.
            Ok(region) => Ok(unsafe { Memory::from_raw(region.memory) }),
            // This buffer spans the region, so any other buffers are empty and overlap nothing.
            Err(failed) => Err(failed.map(Self::whole)),
        }
    }
}

/// The range as numbers, if it lies in `0..len`.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: usize) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}

impl Deref for Buffer<Host> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: from_raw_parts requires `len` readable, initialised bytes, at most isize::MAX,
        // which nobody writes during the borrow: readable by M1 and M3; initialised by M6; not
        // written by M4, as `self` is held and borrowed; a region is one allocation or mapping, so
        // at most isize::MAX bytes.
        unsafe { slice::from_raw_parts(self.segment.pointer.as_ptr(), self.segment.len) }
    }
}

impl DerefMut for Buffer<Host> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: from_raw_parts_mut requires valid, initialised bytes without other accesses: M1,
        // M3 and M6, as in `deref`; nobody else has the bytes while `self` is borrowed exclusively
        // (M4).
        unsafe { slice::from_raw_parts_mut(self.segment.pointer.as_ptr(), self.segment.len) }
    }
}

impl Buffer<Host> {
    /// The bytes as elements of type `T`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the elements would not be aligned, if the length is not a multiple of
    /// their size, or if they have no bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut buffer = pd.allocate(64)?;
    /// buffer.elements_mut::<u64>()?[7] = 42;
    /// let words = buffer.split_off(56);
    /// assert_eq!(words.elements::<u64>()?, [42]);
    /// assert!(words.elements::<[u64; 2]>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn elements<T: AnyBitPattern>(&self) -> Result<&[T]> {
        bytemuck::try_cast_slice(self).map_err(|_| Error::new(Verb::Access, ErrorKind::InvalidInput))
    }

    /// The bytes as elements of type `T`, to change.
    ///
    /// # Errors
    ///
    /// As for [`elements`](Self::elements).
    pub fn elements_mut<T: Pod>(&mut self) -> Result<&mut [T]> {
        bytemuck::try_cast_slice_mut(self).map_err(|_| Error::new(Verb::Access, ErrorKind::InvalidInput))
    }
}

impl AsRef<[u8]> for Buffer<Host> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer<Host> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<M: Placement> fmt::Debug for Buffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &self.segment.pointer)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
