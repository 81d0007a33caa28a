//! Local memory of requests: the types that can be local memory, the scatter/gather list, and
//! parking in a slot.

use std::ops::{Range, RangeBounds};
use std::ptr;

use rdma_sys::{ibv_send_flags, ibv_sge};

use crate::error::ErrorKind;
use crate::mr::{
    Buffer, ExposedSlice, Host, Kind, Lent, LentSlice, LentSliceMut, Placement, Segment, SinkSlice, SourceSlice,
    resolve,
};
use crate::pd::PdInner;
use crate::ring::{ReturnedMemory, Vacant};
use crate::types::RemoteAccess;

/// The reason why a request was not posted: an [`ErrorKind`] in one byte, to keep the common path
/// short.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum Refusal {
    Ended,
    QueueFull,
    TooLong,
    TooManySegments,
    OutOfBounds,
    InvalidInput,
    NotSupported,
}

impl Refusal {
    /// The error kind; `ended` is the kind for a queue that has ended.
    #[cold]
    pub(super) fn kind(self, ended: ErrorKind) -> ErrorKind {
        match self {
            Self::Ended => ended,
            Self::QueueFull => ErrorKind::QueueFull,
            Self::TooLong => ErrorKind::TooLong,
            Self::TooManySegments => ErrorKind::TooManySegments,
            Self::OutOfBounds => ErrorKind::OutOfBounds,
            Self::InvalidInput => ErrorKind::InvalidInput,
            Self::NotSupported => ErrorKind::NotSupported,
        }
    }
}

/// Local memory of a request: segments that a send gathers from, or a receive scatters to, in
/// order.
// Sealed: code outside this crate cannot name the types in these methods. The traits below have
// `Local` as a supertrait.
pub trait Local {
    /// The inline flag if the caller keeps the bytes: the provider must copy them while the request
    /// is posted, since the device cannot read them afterwards. 0 for other memory.
    #[doc(hidden)]
    const INLINE: u32 = 0;

    /// Whether some of the memory is on a GPU.
    #[doc(hidden)]
    const ON_GPU: bool = false;

    #[doc(hidden)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal>;

    /// Whether the processor cannot write some of the memory at the address that the device knows:
    /// it is on a GPU, or has a chosen address.
    #[doc(hidden)]
    #[inline(always)]
    fn is_out_of_reach(&self) -> bool {
        Self::ON_GPU
    }

    /// Whether all of the memory may be the sink of a read on iWARP.
    #[doc(hidden)]
    fn is_open_to_writes(&self) -> bool {
        false
    }
}

/// [`Local`] memory that a request owns while it is in flight, and that its completion returns.
pub trait Owned: Local + Sized {
    /// The memory that a failed post returns: the memory itself, or `()` for bytes that were only
    /// borrowed.
    type Returned;

    /// The number of segments; [`ANY`] if it differs between values.
    #[doc(hidden)]
    const SEGMENTS: usize;

    /// Copies the segments into the slot bitwise, so that two copies exist.
    ///
    /// # Safety
    ///
    /// The copies are not used unless `surrender` is called or the original is forgotten.
    #[doc(hidden)]
    unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize);

    /// Forgets the segments; from now on, only their copies in the slot are in use.
    #[doc(hidden)]
    #[inline]
    #[allow(clippy::mem_forget, reason = "its copy is in the slot")]
    fn surrender(self) {
        std::mem::forget(self);
    }

    #[doc(hidden)]
    fn give_back(self) -> Self::Returned;

    /// Makes the memory again from the segments that the slot held.
    #[doc(hidden)]
    fn collect(memory: &mut ReturnedMemory) -> Option<Self::Returned>;
}

/// [`Owned::SEGMENTS`] of a vector.
const ANY: usize = usize::MAX;

/// The number of segments of two pieces of memory, one after the other.
const fn sum(first: usize, second: usize) -> usize {
    assert!(first != ANY, "a vector of unknown length comes last, so that its segments can be told from others");
    if second == ANY { ANY } else { first + second }
}

/// [`Local`] memory that the device may read: that of a send or a write.
pub trait Sendable: Local {}

/// [`Local`] memory that the device may write: that of a receive, a read or an atomic operation.
pub trait Writable: Local {}

/// [`Local`] memory that the processor can read while a request is posted.
pub trait HostBytes: Local {}

/// Bytes of the caller that are copied when the request is posted.
#[derive(Debug, Clone, Copy)]
pub struct Inline<'a> {
    bytes: &'a [u8],
}

impl<'a> Inline<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

/// The length of the longest message.
const LONGEST: usize = 1 << 31;

/// A request's scatter/gather list while it is being written.
#[derive(Debug)]
pub struct SgeList<'a> {
    list: &'a mut [ibv_sge],
    count: usize,
    pieces: usize,
    total: u64,
    domain: *const PdInner,
}

impl<'a> SgeList<'a> {
    #[inline(always)]
    pub(super) fn new(list: &'a mut [ibv_sge], domain: *const PdInner) -> Self {
        Self { list, count: 0, pieces: 0, total: 0, domain }
    }

    /// The number of elements.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a list is as long as the C int that it was made from says")]
    pub(super) fn count(&self) -> i32 {
        self.count as i32
    }

    /// The number of bytes in all elements.
    #[inline(always)]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Adds an empty element if the list is empty.
    pub(super) fn push_placeholder(&mut self) {
        if let (0, Some(sge)) = (self.count, self.list.first_mut()) {
            *sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
            self.count = 1;
        }
    }

    #[inline(always)]
    fn push(&mut self, addr: u64, len: usize, lkey: u32) -> Result<(), Refusal> {
        // Empty segments count too: they are parked with the others.
        self.pieces += 1;
        // Before the checks, so that the total of one segment is its length whatever they find, and
        // needs no register of its own. A list with a segment that is refused is not used.
        self.total += len as u64;
        if self.pieces > self.list.len() {
            return Err(Refusal::TooManySegments);
        }
        // One comparison finds 0 and all that is not below the limit.
        if len.wrapping_sub(1) >= LONGEST - 1 {
            if let Some(result) = unusual(len) {
                return result;
            }
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most 2^31, the longest message there is")]
        let length = len as u32;
        let Some(sge) = self.list.get_mut(self.count) else { return Err(Refusal::TooManySegments) };
        *sge = ibv_sge { addr, length, lkey };
        self.count += 1;
        Ok(())
    }

    /// Adds `range` of a segment; the range must lie within the segment, and `shift` is the
    /// segment's (M9), which is 0 for most.
    #[inline(always)]
    fn push_segment(&mut self, segment: &Segment, range: Range<usize>, shift: u64) -> Result<(), Refusal> {
        let at = self.count;
        let address = (segment.pointer.as_ptr().addr() as u64).wrapping_add(shift);
        self.push(address.wrapping_add(range.start as u64), range.len(), segment.lkey())?;
        if ptr::eq(segment.domain(), self.domain) {
            return Ok(());
        }
        // The key is put right afterwards, and not chosen before, to keep the common path short.
        let lkey = segment.lkey_in(self.domain).ok_or(Refusal::InvalidInput)?;
        if let Some(sge) = self.list.get_mut(at) {
            sge.lkey = lkey;
        }
        Ok(())
    }

    fn push_lent(&mut self, lent: &Lent) -> Result<(), Refusal> {
        let lkey = if lent.domain == self.domain {
            lent.lkey
        } else {
            lent.lkey_in(self.domain).ok_or(Refusal::InvalidInput)?
        };
        self.push(lent.pointer.as_ptr().addr() as u64, lent.len, lkey)
    }
}

/// The result for an element that is empty or too long; none for one of [`LONGEST`] bytes. An empty
/// element is skipped, because some devices treat a length of 0 as 2^31 bytes.
#[cold]
fn unusual(len: usize) -> Option<Result<(), Refusal>> {
    match len {
        0 => Some(Ok(())),
        LONGEST => None,
        _ => Some(Err(Refusal::TooLong)),
    }
}

/// Copies one segment into the slot.
///
/// # Safety
///
/// As for [`Owned::park`]; the slot has space for the segment.
#[inline(always)]
unsafe fn park_segment(segment: &Segment, slot: &mut Vacant<'_>, at: &mut usize) {
    let place = slot.segment(*at);
    *at += 1;
    // SAFETY: ptr::read requires an initialised value that is used once: the reference is valid,
    // and either the original or the copy is forgotten (the contract of this function).
    let region = unsafe { ptr::read(&raw const segment.region) };
    // Copied field by field, so that the compiler can keep the original in registers.
    let copy = Segment { region, pointer: segment.pointer, len: segment.len };
    // SAFETY: the write requires a valid, aligned place: it is in a free slot, which the Vacant
    // owns, with space for the segment (the contract of this function). The old value was moved out
    // or is leaked.
    unsafe { place.write(copy) };
}

macro_rules! segments {
    ($([$($generics:tt)*] $memory:ty, $on_gpu:expr, $kind:expr, $from_segment:path, |$this:ident| $shift:expr, $is_open:expr;)*) => { $(
        impl<$($generics)*> Sendable for $memory {}

        impl<$($generics)*> Local for $memory {
            const ON_GPU: bool = $on_gpu;

            #[inline(always)]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                let $this = self;
                list.push_segment(self.segment(), 0..self.segment().len, $shift)
            }

            #[inline(always)]
            fn is_out_of_reach(&self) -> bool {
                let $this = self;
                Self::ON_GPU || $shift != 0
            }

            fn is_open_to_writes(&self) -> bool {
                let $this = self;
                $is_open
            }
        }

        impl<$($generics)*> Owned for $memory {
            type Returned = Self;
            const SEGMENTS: usize = 1;

            #[inline(always)]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: the callee has the same contract as this function.
                unsafe { park_segment(self.segment(), slot, at) };
            }

            fn give_back(self) -> Self {
                self
            }

            #[inline]
            fn collect(memory: &mut ReturnedMemory) -> Option<Self> {
                let segment = memory.take_if($kind)?;
                // SAFETY: the callee requires a segment of this kind that was parked as such and
                // overlaps no other: `take_if` returns no other kind, and the slot held it (M4).
                Some(unsafe { $from_segment(segment) })
            }
        }
    )* };
}
segments! {
    [M: Placement] Buffer<M>, !M::IS_HOST, Kind::local::<M>(), Self::from_segment, |_buffer| 0, false;
    [M: Placement] ExposedSlice<M>, !M::IS_HOST, Kind::exposed::<M>(), Self::from_segment, |slice| slice.segment().shift(), slice.access().contains(RemoteAccess::WRITE);
    [] SourceSlice, false, Kind::Source, Self::from_segment, |_source| 0, false;
}

impl<M: Placement> Writable for Buffer<M> {}
impl<M: Placement> Writable for ExposedSlice<M> {}
impl HostBytes for Buffer {}
impl HostBytes for SourceSlice {}

impl<M: Placement> Writable for SinkSlice<M> {}

impl<M: Placement> Local for SinkSlice<M> {
    const ON_GPU: bool = ExposedSlice::<M>::ON_GPU;

    #[inline(always)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
        self.slice().describe(list)
    }

    #[inline(always)]
    fn is_out_of_reach(&self) -> bool {
        self.slice().is_out_of_reach()
    }

    fn is_open_to_writes(&self) -> bool {
        self.slice().is_open_to_writes()
    }
}

impl<M: Placement> Owned for SinkSlice<M> {
    type Returned = ExposedSlice<M>;
    const SEGMENTS: usize = 1;

    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
        // SAFETY: the callee has the same contract as this function.
        unsafe { self.slice().park(slot, at) };
    }

    fn give_back(self) -> ExposedSlice<M> {
        self.into_slice()
    }

    #[inline]
    fn collect(memory: &mut ReturnedMemory) -> Option<ExposedSlice<M>> {
        ExposedSlice::collect(memory)
    }
}

/// A range of a [`Buffer`] to send or write; the completion returns the whole buffer. Created by
/// [`Buffer::part`].
#[derive(Debug)]
pub struct Part<M: Placement = Host> {
    buffer: Buffer<M>,
    range: Range<usize>,
}

impl<M: Placement> Buffer<M> {
    /// Uses a range of the buffer as the memory of a send or a write. The request takes the whole
    /// buffer, and its completion returns the whole buffer.
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer, like slice indexing.
    ///
    /// ```
    /// # use rdma::{Buffer, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, mut buffer: Buffer) -> Result<(), rdma::Error> {
    /// buffer[..5].copy_from_slice(b"hello");
    /// qp.post_send(rdma::op::send(buffer.part(..5)))?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn part(self, range: impl RangeBounds<usize>) -> Part<M> {
        let range = resolve(range, self.len()).expect("the range lies in the buffer");
        Part { buffer: self, range }
    }
}

impl<M: Placement> Sendable for Part<M> {}
impl HostBytes for Part {}

impl<M: Placement> Local for Part<M> {
    const ON_GPU: bool = !M::IS_HOST;

    #[inline(always)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
        list.push_segment(self.buffer.segment(), self.range.clone(), 0)
    }
}

impl<M: Placement> Owned for Part<M> {
    type Returned = Buffer<M>;
    const SEGMENTS: usize = 1;

    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
        // SAFETY: the callee has the same contract as this function.
        unsafe { self.buffer.park(slot, at) };
    }

    fn give_back(self) -> Buffer<M> {
        self.buffer
    }

    fn collect(memory: &mut ReturnedMemory) -> Option<Buffer<M>> {
        Buffer::collect(memory)
    }
}

impl Sendable for Inline<'_> {}

impl Local for Inline<'_> {
    const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

    #[inline(always)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
        list.push(self.bytes.as_ptr().expose_provenance() as u64, self.bytes.len(), 0)
    }
}

impl Sendable for () {}
impl Writable for () {}
impl HostBytes for () {}

impl Local for () {
    #[inline(always)]
    fn describe(&self, _: &mut SgeList<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn is_open_to_writes(&self) -> bool {
        true
    }
}

macro_rules! without_segments {
    ($($memory:ty)*) => { $(
        impl Owned for $memory {
            type Returned = ();
            const SEGMENTS: usize = 0;

            #[inline(always)]
            unsafe fn park(&self, _: &mut Vacant<'_>, _: &mut usize) {}

            fn give_back(self) {}

            fn collect(_: &mut ReturnedMemory) -> Option<()> {
                Some(())
            }
        }
    )* };
}
without_segments! { Inline<'_> () }

macro_rules! lent {
    ($($memory:ty)*) => { $(
        impl Sendable for $memory {}
        impl HostBytes for $memory {}

        impl Local for $memory {
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                list.push_lent(&self.lent)
            }
        }
    )* };
}
lent! { LentSlice<'_> LentSliceMut<'_> }

impl Writable for LentSliceMut<'_> {}

macro_rules! lists {
    ($([$($generics:tt)*] $list:ty, $returned:ty, $segments:expr, |$memory:ident| $collect:expr, |$pieces:ident| $map:expr;)*) => { $(
        impl<L: Sendable, $($generics)*> Sendable for $list {}
        impl<L: Writable, $($generics)*> Writable for $list {}
        impl<L: HostBytes, $($generics)*> HostBytes for $list {}

        impl<L: Local, $($generics)*> Local for $list {
            const INLINE: u32 = L::INLINE;
            const ON_GPU: bool = L::ON_GPU;

            #[inline]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                self.iter().try_for_each(|piece| piece.describe(list))
            }

            #[inline]
            fn is_out_of_reach(&self) -> bool {
                self.iter().any(L::is_out_of_reach)
            }

            fn is_open_to_writes(&self) -> bool {
                self.iter().all(L::is_open_to_writes)
            }
        }

        impl<L: Owned, $($generics)*> Owned for $list {
            type Returned = $returned;
            const SEGMENTS: usize = $segments;

            #[inline]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: the callee has the same contract as this function, which holds for each
                // element.
                self.iter().for_each(|piece| unsafe { piece.park(slot, at) });
            }

            #[inline]
            fn surrender(self) {
                self.into_iter().for_each(L::surrender);
            }

            fn give_back(self) -> Self::Returned {
                let $pieces = self;
                $map
            }

            fn collect($memory: &mut ReturnedMemory) -> Option<Self::Returned> {
                $collect
            }
        }
    )* };
}

lists! {
    [const N: usize] [L; N], [L::Returned; N], repeat(L::SEGMENTS, N), |memory| collect_array::<L, N>(memory), |pieces| pieces.map(L::give_back);
    [] Vec<L>, Vec<L::Returned>, sum(L::SEGMENTS, ANY), |memory| collect_rest::<L>(memory), |pieces| pieces.into_iter().map(L::give_back).collect();
}

/// The number of segments of an array's elements.
const fn repeat(each: usize, count: usize) -> usize {
    match count {
        0 => 0,
        1 => each,
        _ => sum(each, each * (count - 1)),
    }
}

fn collect_array<L: Owned, const N: usize>(memory: &mut ReturnedMemory) -> Option<[L::Returned; N]> {
    let pieces: [_; N] = std::array::from_fn(|_| L::collect(memory));
    let is_whole = pieces.iter().all(Option::is_some);
    is_whole.then(|| pieces.map(|piece| piece.expect("each is present")))
}

fn collect_rest<L: Owned>(memory: &mut ReturnedMemory) -> Option<Vec<L::Returned>> {
    let mut pieces = Vec::new();
    while !memory.is_empty() {
        pieces.push(L::collect(memory)?);
    }
    Some(pieces)
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => { $(
        impl<$($name: Sendable),*> Sendable for ($($name,)*) {}
        impl<$($name: Writable),*> Writable for ($($name,)*) {}
        impl<$($name: HostBytes),*> HostBytes for ($($name,)*) {}

        impl<$($name: Local),*> Local for ($($name,)*) {
            const INLINE: u32 = {
                // The inline flag applies to the whole list, and the processor cannot copy from all
                // memory.
                assert!($($name::INLINE == A::INLINE)&&*, "bytes that are copied do not mix with registered memory");
                A::INLINE
            };
            const ON_GPU: bool = $($name::ON_GPU)||*;

            #[inline]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                $(self.$index.describe(list)?;)*
                Ok(())
            }

            #[inline]
            fn is_out_of_reach(&self) -> bool {
                $(self.$index.is_out_of_reach())||*
            }

            fn is_open_to_writes(&self) -> bool {
                $(self.$index.is_open_to_writes())&&*
            }
        }

        impl<$($name: Owned),*> Owned for ($($name,)*) {
            type Returned = ($($name::Returned,)*);
            const SEGMENTS: usize = tuples!(@sum $($name)*);

            #[inline]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: the callee has the same contract as this function, which holds for each
                // element.
                $(unsafe { self.$index.park(slot, at) };)*
            }

            #[inline]
            fn surrender(self) {
                $(self.$index.surrender();)*
            }

            fn give_back(self) -> Self::Returned {
                ($(self.$index.give_back(),)*)
            }

            fn collect(memory: &mut ReturnedMemory) -> Option<Self::Returned> {
                Some(($($name::collect(memory)?,)*))
            }
        }
    )* };
    (@sum $last:ident) => { $last::SEGMENTS };
    (@sum $first:ident $($rest:ident)+) => { sum($first::SEGMENTS, tuples!(@sum $($rest)+)) };
}

tuples! { (A 0, B 1) (A 0, B 1, C 2) }
