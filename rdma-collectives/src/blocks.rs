//! Scratch blocks in the first-level cache, in which sums are made: exposed memory is only copied,
//! never borrowed.

use std::ops::Range;

use crate::element::Element;

/// Bytes of one copy between exposed and private memory: small enough for the first-level cache.
pub(crate) const BLOCK: usize = 4096;

/// Two scratch blocks, aligned for every element type.
#[derive(Debug)]
pub(crate) struct Blocks {
    sums: Vec<u64>,
    more: Vec<u64>,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Self { sums: vec![0; BLOCK / 8], more: vec![0; BLOCK / 8] }
    }

    /// The block for sums, and the block for the elements added to them.
    #[inline]
    pub(crate) fn of<T: Element>(&mut self) -> (&mut [T], &mut [T]) {
        (bytemuck::cast_slice_mut(&mut self.sums), bytemuck::cast_slice_mut(&mut self.more))
    }
}

/// Cuts a range into parts of at most `length`.
pub(crate) fn parts(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..start.saturating_add(length).min(end))
}

/// The byte range of some elements. A position beyond the address space becomes its end, which lies
/// in no memory.
pub(crate) fn bytes<T>(elements: Range<usize>) -> Range<usize> {
    elements.start.saturating_mul(size_of::<T>())..elements.end.saturating_mul(size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range() {
        assert_eq!(parts(3..10, 3).collect::<Vec<_>>(), [3..6, 6..9, 9..10]);
        assert_eq!(parts(3..3, 3).count(), 0);
        assert!(parts(3..5, usize::MAX).eq(std::iter::once(3..5)));
    }
}
