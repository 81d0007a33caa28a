//! The local memory of a request: the types that can be one, their scatter/gather list, and parking
//! in a slot.

use std::ops::{Range, RangeBounds};
use std::ptr;

use rdma_sys::{ibv_send_flags, ibv_sge};

use super::ring::Vacant;
use crate::error::ErrorKind;
use crate::mr::{Buffer, ExposedSlice, Host, Lent, LentSlice, LentSliceMut, Placement, Segment, resolve};
use crate::pd::PdInner;
use crate::types::RemoteAccess;

/// The reason not to post a request: an [`ErrorKind`] in one byte, to keep the common path short.
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
    /// `ended` is what the end of the queue means.
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

/// Local memory of a request: pieces that are gathered from, or scattered to, in order.
// Sealed: the types in its methods cannot be named outside of this crate. The traits below have it
// as a supertrait.
pub trait Local {
    /// Whether the bytes are the caller's, which the provider must copy while the request is
    /// posted: the device could not read them afterwards.
    #[doc(hidden)]
    const INLINE: u32 = 0;

    #[doc(hidden)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal>;

    /// Whether all of it may be the sink of a read on iWARP.
    #[doc(hidden)]
    fn is_open_to_writes(&self) -> bool {
        false
    }
}

/// [`Local`] memory that a request takes with it, and that its completion gives back.
pub trait Owned: Local + Sized {
    /// What a failed post gives back: the memory itself, or `()` for bytes that were only borrowed.
    type Returned;

    /// Copies the segments into the slot, bit by bit.
    ///
    /// # Safety
    ///
    /// The copies are not used unless `surrender` is called, or the original is forgotten.
    #[doc(hidden)]
    unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize);

    /// Forgets the segments, whose copies are in use now.
    #[doc(hidden)]
    #[inline]
    #[allow(clippy::mem_forget, reason = "its copy is in the slot")]
    fn surrender(self) {
        std::mem::forget(self);
    }

    #[doc(hidden)]
    fn give_back(self) -> Self::Returned;
}

/// [`Local`] memory that the device may write.
pub trait Writable: Local {}

/// [`Local`] memory that the processor may read at once, while a request is posted.
pub trait HostBytes: Local {}

/// Bytes of the caller, copied when the request is posted.
#[derive(Debug, Clone, Copy)]
pub struct Inline<'a> {
    bytes: &'a [u8],
}

impl<'a> Inline<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

/// A request's scatter/gather list, while it is written.
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

    /// How many elements it has.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a list is as long as the C int that it was made from says")]
    pub(super) fn count(&self) -> i32 {
        self.count as i32
    }

    /// How many bytes its elements have.
    #[inline(always)]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Makes an empty list one empty element.
    pub(super) fn push_placeholder(&mut self) {
        if let (0, Some(sge)) = (self.count, self.list.first_mut()) {
            *sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
            self.count = 1;
        }
    }

    #[inline(always)]
    fn push(&mut self, addr: u64, len: usize, lkey: u32) -> Result<(), Refusal> {
        // Empty pieces count too: they are parked with the others.
        self.pieces += 1;
        if self.pieces > self.list.len() {
            return Err(Refusal::TooManySegments);
        }
        if len.wrapping_sub(1) >> 31 != 0 {
            return empty_or_too_long(len);
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most 2^31, the longest message there is")]
        let length = len as u32;
        let Some(sge) = self.list.get_mut(self.count) else { return Err(Refusal::TooManySegments) };
        *sge = ibv_sge { addr, length, lkey };
        self.count += 1;
        self.total += u64::from(length);
        Ok(())
    }

    /// Adds `range` of a segment, in which it lies.
    #[inline(always)]
    fn push_segment(&mut self, segment: &Segment, range: Range<usize>) -> Result<(), Refusal> {
        if !ptr::eq(segment.domain(), self.domain) {
            return Err(Refusal::InvalidInput);
        }
        self.push(segment.iova().wrapping_add(range.start as u64), range.len(), segment.lkey())
    }

    fn push_lent(&mut self, lent: &Lent) -> Result<(), Refusal> {
        if lent.domain != self.domain {
            return Err(Refusal::InvalidInput);
        }
        self.push(lent.pointer.as_ptr().addr() as u64, lent.len, lent.lkey)
    }
}

/// Some devices take an empty element for one of 2^31 bytes, so it is left out.
#[cold]
fn empty_or_too_long(len: usize) -> Result<(), Refusal> {
    if len == 0 { Ok(()) } else { Err(Refusal::TooLong) }
}

/// Parks one segment.
///
/// # Safety
///
/// The condition of [`Owned::park`]; the slot has room for the segment.
#[inline(always)]
unsafe fn park_segment(segment: &Segment, slot: &mut Vacant<'_>, at: &mut usize) {
    let place = slot.segment(*at);
    *at += 1;
    // SAFETY: valid for reads. Of the original and the copy, one is forgotten: this function's own
    // condition.
    let region = unsafe { ptr::read(&raw const segment.region) };
    // Field by field, so that the original need not be in memory.
    let copy = Segment { region, pointer: segment.pointer, len: segment.len };
    // SAFETY: the place is one of a free slot's (the Vacant says so), valid and aligned; what lay
    // there was moved out or is leaked.
    unsafe { place.write(copy) };
}

macro_rules! segments {
    ($([$($generics:tt)*] $memory:ty, |$this:ident| $is_open:expr;)*) => { $(
        impl<$($generics)*> Writable for $memory {}

        impl<$($generics)*> Local for $memory {
            #[inline(always)]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                list.push_segment(self.segment(), 0..self.segment().len)
            }

            fn is_open_to_writes(&self) -> bool {
                let $this = self;
                $is_open
            }
        }

        impl<$($generics)*> Owned for $memory {
            type Returned = Self;

            #[inline(always)]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: this function's own condition.
                unsafe { park_segment(self.segment(), slot, at) };
            }

            fn give_back(self) -> Self {
                self
            }
        }
    )* };
}
segments! {
    [M: Placement] Buffer<M>, |_buffer| false;
    [] ExposedSlice, |slice| slice.access().contains(RemoteAccess::WRITE);
}

impl HostBytes for Buffer {}

/// Part of a [`Buffer`], to be sent or written; the completion gives the whole buffer back:
/// [`Buffer::part`].
#[derive(Debug)]
pub struct Part<M: Placement = Host> {
    buffer: Buffer<M>,
    range: Range<usize>,
}

impl<M: Placement> Buffer<M> {
    /// A range of the buffer as the memory of a send or a write. The request takes the whole buffer
    /// with it, and its completion gives the whole buffer back.
    ///
    /// # Panics
    ///
    /// If the range does not lie in the buffer, like indexing a slice.
    ///
    /// ```
    /// # use rdma::{Buffer, QueuePair, Rc};
    /// # fn f(qp: &mut QueuePair<Rc>, mut buffer: Buffer) -> Result<(), rdma::Error> {
    /// buffer[..5].copy_from_slice(b"hello");
    /// qp.post_send(rdma::op::Send::new(buffer.part(..5)))?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn part(self, range: impl RangeBounds<usize>) -> Part<M> {
        let range = resolve(range, self.len()).expect("the range lies in the buffer");
        Part { buffer: self, range }
    }
}

impl HostBytes for Part {}

impl<M: Placement> Local for Part<M> {
    #[inline(always)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
        list.push_segment(self.buffer.segment(), self.range.clone())
    }
}

impl<M: Placement> Owned for Part<M> {
    type Returned = Buffer<M>;

    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
        // SAFETY: this function's own condition.
        unsafe { self.buffer.park(slot, at) };
    }

    fn give_back(self) -> Buffer<M> {
        self.buffer
    }
}

impl Local for Inline<'_> {
    const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

    #[inline(always)]
    fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
        list.push(self.bytes.as_ptr().expose_provenance() as u64, self.bytes.len(), 0)
    }
}

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

            #[inline(always)]
            unsafe fn park(&self, _: &mut Vacant<'_>, _: &mut usize) {}

            fn give_back(self) {}
        }
    )* };
}
without_segments! { Inline<'_> () }

macro_rules! lent {
    ($($memory:ty)*) => { $(
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
    ($([$($generics:tt)*] $list:ty, $returned:ty, |$pieces:ident| $map:expr;)*) => { $(
        impl<L: Writable, $($generics)*> Writable for $list {}
        impl<L: HostBytes, $($generics)*> HostBytes for $list {}

        impl<L: Local, $($generics)*> Local for $list {
            const INLINE: u32 = L::INLINE;

            #[inline]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                self.iter().try_for_each(|piece| piece.describe(list))
            }

            fn is_open_to_writes(&self) -> bool {
                self.iter().all(L::is_open_to_writes)
            }
        }

        impl<L: Owned, $($generics)*> Owned for $list {
            type Returned = $returned;

            #[inline]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: this function's own condition, for each piece.
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
        }
    )* };
}

lists! {
    [const N: usize] [L; N], [L::Returned; N], |pieces| pieces.map(L::give_back);
    [] Vec<L>, Vec<L::Returned>, |pieces| pieces.into_iter().map(L::give_back).collect();
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => { $(
        impl<$($name: Writable),*> Writable for ($($name,)*) {}
        impl<$($name: HostBytes),*> HostBytes for ($($name,)*) {}

        impl<$($name: Local),*> Local for ($($name,)*) {
            const INLINE: u32 = {
                // The flag is for the whole list, and not all memory can be copied from.
                assert!($($name::INLINE == A::INLINE)&&*, "bytes that are copied do not mix with registered memory");
                A::INLINE
            };

            #[inline]
            fn describe(&self, list: &mut SgeList<'_>) -> Result<(), Refusal> {
                $(self.$index.describe(list)?;)*
                Ok(())
            }

            fn is_open_to_writes(&self) -> bool {
                $(self.$index.is_open_to_writes())&&*
            }
        }

        impl<$($name: Owned),*> Owned for ($($name,)*) {
            type Returned = ($($name::Returned,)*);

            #[inline]
            unsafe fn park(&self, slot: &mut Vacant<'_>, at: &mut usize) {
                // SAFETY: this function's own condition, for each piece.
                $(unsafe { self.$index.park(slot, at) };)*
            }

            #[inline]
            fn surrender(self) {
                $(self.$index.surrender();)*
            }

            fn give_back(self) -> Self::Returned {
                ($(self.$index.give_back(),)*)
            }
        }
    )* };
}

tuples! { (A 0, B 1) (A 0, B 1, C 2) }
