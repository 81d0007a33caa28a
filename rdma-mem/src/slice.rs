//! Bounds-checked ranges of memory that other threads, processes and devices may access.
//!
//! A [`SharedSlice`] is to this memory what `&[AtomicU8]` is to a program's own: it may be copied
//! and sent to other threads, and every access is a copy or an atomic word of this crate.
//!
//! # Safety
//!
//! Invariants that the blocks in this module and in [`reduce`](mod@crate::reduce) cite:
//!
//! 1. The `len` bytes from `start` of a slice are valid for reads during its lifetime, and those of
//!    a [`SharedSliceMut`] for writes as well.
//! 2. During the lifetime of a slice, no plain write of this program goes to its bytes; during that
//!    of a [`SharedSliceMut`], no plain read either.

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::word;

/// An access that the memory does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The range does not lie in the memory.
    #[error("bytes {start}..{end} do not lie in a memory of {len} bytes")]
    Range {
        /// First byte of the range.
        start: usize,
        /// The byte after its last one.
        end: usize,
        /// Bytes of the memory.
        len: usize,
    },
    /// The offset of a word makes its address no multiple of 8.
    #[error("the word at byte {0} is not aligned")]
    Unaligned(usize),
    /// Operands differ in length.
    #[error("an operand has {actual} bytes, the result {expected}")]
    Length {
        /// Bytes of the result.
        expected: usize,
        /// Bytes of the operand.
        actual: usize,
    },
    /// The length is not a multiple of the size of an element.
    #[error("{0} bytes are no whole number of elements")]
    Elements(usize),
    /// The result overlaps an operand in part.
    #[error("the result overlaps an operand in part")]
    Overlap,
    /// A bitwise operation on floating-point numbers.
    #[error("the bitwise operation {operation} is for integers, not for {scalar}")]
    Bitwise {
        /// The name of the operation.
        operation: &'static str,
        /// The name of the elements' type.
        scalar: &'static str,
    },
    /// A reduction of nothing.
    #[error("a reduction without operands")]
    NoOperand,
}

/// Memory to read, which others may write at the same time.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: Send requires a value that another thread may use: accesses are this crate's, which may
// race (2), and the bytes are valid in all threads for the lifetime (1).
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: Sync requires references that several threads may use: the value is Copy and Send.
unsafe impl Sync for SharedSlice<'_> {}

impl<'a> SharedSlice<'a> {
    /// A slice of `len` bytes from `start`.
    ///
    /// # Safety
    ///
    /// During `'a`, the bytes are valid for reads, and no plain write of this program goes to them.
    #[must_use]
    #[inline]
    pub const unsafe fn from_raw(start: *const u8, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// Number of bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first byte.
    #[must_use]
    #[inline]
    pub const fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// A part of the slice.
    ///
    /// # Errors
    ///
    /// `Range` if the part does not lie in the slice.
    #[inline]
    pub fn slice(self, range: Range<usize>) -> Result<Self, SliceError> {
        check(&range, self.len)?;
        Ok(Self { start: self.start.wrapping_add(range.start), len: range.end - range.start, memory: PhantomData })
    }

    /// Copies the whole slice. Bytes that change meanwhile are old or new.
    ///
    /// # Errors
    ///
    /// `Length` if `into` has another length.
    #[inline]
    pub fn copy_to(self, into: &mut [u8]) -> Result<(), SliceError> {
        if into.len() != self.len {
            return Err(SliceError::Length { expected: into.len(), actual: self.len });
        }
        // SAFETY: copy requires two valid ranges of `len` bytes, disjoint, without plain accesses:
        // the slice has them (1, 2), and `into` is borrowed exclusively, so it is no part of a
        // slice.
        unsafe { crate::copy(into.as_mut_ptr(), self.start, self.len) };
        Ok(())
    }

    /// Loads the word at a byte offset; what its writer stored before is visible afterwards.
    ///
    /// # Errors
    ///
    /// `Range` or `Unaligned`.
    #[inline]
    pub fn load_u64(self, offset: usize) -> Result<u64, SliceError> {
        let address = word(self.start, offset, self.len)?;
        // SAFETY: load_word requires an aligned word, valid for reads, without plain writes: `word`
        // checks alignment and range, and the slice has the rest (1, 2).
        Ok(unsafe { crate::copy::load_word(address) })
    }
}

/// The bytes of a borrow, which nothing writes for its duration.
impl<'a> From<&'a [u8]> for SharedSlice<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: from_raw requires bytes that are readable and without writes for `'a`: the borrow
        // has both.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }
}

/// Memory to read and write, which others may read and write at the same time.
///
/// Invariant: the bytes of the slice inside meet both invariants of this type too.
#[derive(Clone, Copy, Debug)]
pub struct SharedSliceMut<'a>(SharedSlice<'a>);

impl<'a> SharedSliceMut<'a> {
    /// A slice of `len` bytes from `start`.
    ///
    /// # Safety
    ///
    /// During `'a`, the bytes are valid for reads and writes, and no plain access of this program
    /// goes to them.
    #[must_use]
    #[inline]
    pub const unsafe fn from_raw(start: *mut u8, len: usize) -> Self {
        // SAFETY: from_raw requires bytes that are valid for reads, without plain writes: this
        // function's condition.
        Self(unsafe { SharedSlice::from_raw(start, len) })
    }

    /// Number of bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.0.len
    }

    /// Whether the slice has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The first byte.
    #[must_use]
    #[inline]
    pub const fn as_mut_ptr(self) -> *mut u8 {
        self.0.start.cast_mut()
    }

    /// The same memory, to read.
    #[must_use]
    #[inline]
    pub const fn as_shared(self) -> SharedSlice<'a> {
        self.0
    }

    /// A part of the slice.
    ///
    /// # Errors
    ///
    /// `Range` if the part does not lie in the slice.
    #[inline]
    pub fn slice(self, range: Range<usize>) -> Result<Self, SliceError> {
        self.0.slice(range).map(Self)
    }

    /// Copies `from` to the whole slice. Readers may see old and new bytes mixed, until a word is
    /// stored after the copy by [`store_u64`](Self::store_u64) and they have loaded it.
    ///
    /// # Errors
    ///
    /// `Length` if `from` has another length; `Overlap` if it overlaps the slice in part.
    #[inline]
    pub fn copy_from(self, from: SharedSlice<'_>) -> Result<(), SliceError> {
        if self.check_operand(from)? == Aliasing::Same {
            return Ok(());
        }
        // SAFETY: copy requires two valid ranges of `len` bytes, disjoint, without plain accesses:
        // the slices have them (1, 2), and `check_operand` found them disjoint and of one length.
        unsafe { crate::copy(self.as_mut_ptr(), from.start, self.len()) };
        Ok(())
    }

    /// Stores the word at a byte offset, after everything that this thread stored before.
    ///
    /// # Errors
    ///
    /// `Range` or `Unaligned`.
    #[inline]
    pub fn store_u64(self, offset: usize, value: u64) -> Result<(), SliceError> {
        let address = word(self.0.start, offset, self.len())?;
        // SAFETY: store_u64 requires an aligned word, valid for writes, without plain accesses:
        // `word` checks alignment and range, and the slice has the rest (1, 2).
        unsafe { word::store_u64(address.cast_mut(), value, Ordering::Release) };
        Ok(())
    }

    /// Checks that an operand of an operation that writes this slice has its length, and lies in
    /// the same place or in another.
    #[inline]
    pub(crate) fn check_operand(self, operand: SharedSlice<'_>) -> Result<Aliasing, SliceError> {
        if operand.len != self.len() {
            return Err(SliceError::Length { expected: self.len(), actual: operand.len });
        }
        match self.0.start.addr().abs_diff(operand.start.addr()) {
            0 => Ok(Aliasing::Same),
            distance if distance >= self.len() => Ok(Aliasing::Disjoint),
            _ => Err(SliceError::Overlap),
        }
    }
}

/// The bytes of an exclusive borrow.
impl<'a> From<&'a mut [u8]> for SharedSliceMut<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: from_raw requires bytes that are readable, writable and without plain accesses
        // for `'a`: the exclusive borrow has all three.
        unsafe { Self::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// How two ranges of one length lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aliasing {
    /// The same range.
    Same,
    /// No common byte.
    Disjoint,
}

#[inline]
fn check(range: &Range<usize>, len: usize) -> Result<(), SliceError> {
    if range.start <= range.end && range.end <= len {
        return Ok(());
    }
    Err(SliceError::Range { start: range.start, end: range.end, len })
}

/// The address of the aligned word at an offset in a memory of `len` bytes.
#[inline]
fn word(start: *const u8, offset: usize, len: usize) -> Result<*const u64, SliceError> {
    check(&(offset..offset.saturating_add(8)), len)?;
    let address = start.wrapping_add(offset);
    if address.addr() % 8 != 0 {
        return Err(SliceError::Unaligned(offset));
    }
    Ok(address.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_in_bounds() {
        let mut words = [0_u64; 4];
        // SAFETY: from_raw requires 32 bytes without plain accesses while the slice is used:
        // `words` is a local that is not named again.
        let bytes = unsafe { SharedSliceMut::from_raw(words.as_mut_ptr().cast(), 32) };
        bytes.store_u64(24, 7).unwrap();
        assert_eq!(bytes.as_shared().load_u64(24), Ok(7));
        assert_eq!(bytes.as_shared().load_u64(25), Err(SliceError::Range { start: 25, end: 33, len: 32 }));
        assert!(bytes.store_u64(usize::MAX, 1).is_err());
        assert_eq!(bytes.store_u64(4, 1), Err(SliceError::Unaligned(4)));
        let (start, end) = (9, 8);
        for range in [0..33, 33..34, start..end, usize::MAX - 1..usize::MAX] {
            assert!(matches!(bytes.slice(range.clone()), Err(SliceError::Range { .. })), "{range:?}");
            assert!(bytes.as_shared().slice(range).is_err());
        }
        assert!(bytes.slice(32..32).unwrap().is_empty());
    }

    #[test]
    fn copies_need_equal_lengths_and_no_partial_overlap() {
        let mut memory = [0_u8, 1, 2, 3, 4, 5, 6, 7];
        let all = SharedSliceMut::from(&mut memory[..]);
        let (low, high) = (all.slice(0..4).unwrap(), all.slice(4..8).unwrap());
        assert_eq!(low.copy_from(all.as_shared()), Err(SliceError::Length { expected: 4, actual: 8 }));
        assert_eq!(low.copy_from(all.slice(3..7).unwrap().as_shared()), Err(SliceError::Overlap));
        assert_eq!(low.copy_from(low.as_shared()), Ok(()));
        assert_eq!(low.copy_from(high.as_shared()), Ok(()));
        let mut copy = [0; 8];
        assert!(all.as_shared().copy_to(&mut copy[..7]).is_err());
        all.as_shared().copy_to(&mut copy).unwrap();
        assert_eq!(copy, [4, 5, 6, 7, 4, 5, 6, 7]);
    }
}
