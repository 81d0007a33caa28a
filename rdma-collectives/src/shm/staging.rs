//! Memory in which ranks leave their operands for the others to read.
//!
//! A rank that writes a line which another core's cache still has waits for that cache, and a
//! collective in place writes just the lines that its peers have read. So its operands are copied
//! to a place that no peer has read for a while, or past the caches: on two cores of one processor
//! that is several times as fast.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;

use rdma_mem::{Operation, Scalar, Segment, SegmentView, SharedSlice, Stores, reduce};

use super::failed;
use crate::Error;

/// Bytes of a line, on which operands begin.
const LINE: usize = 64;
/// Fewest bytes of a rank's memory: more than the caches of a core hold, so that a rank comes back
/// to a place when no core has its lines any more.
const RING: usize = 3 << 20;

/// The staging memory of all ranks of a host.
///
/// All ranks stage the same lengths in the same order, so their operands lie at the same offset. An
/// operand is not overwritten by the next one. A rank reads the others' operands before it stages
/// its next one, and waits for the others' to be staged in between; so an operand but one ago has
/// been read.
#[derive(Debug)]
pub(super) struct Staging {
    own: Segment,
    peers: Vec<(usize, SegmentView)>,
    /// Most bytes of an operand.
    most: usize,
    /// Byte offset of the next operand.
    next: Mutex<usize>,
}

impl Staging {
    /// Bytes of a rank's memory for operands of at most `most` bytes.
    pub(super) fn memory(most: usize) -> usize {
        RING.max(Self::least(most))
    }

    /// Fewest bytes for which operands of at most `most` bytes do not overlap.
    fn least(most: usize) -> usize {
        // An operand that finds no space behind the last one begins at the front. Then the last one
        // begins in the last two thirds, so the two are disjoint.
        3 * most.next_multiple_of(LINE)
    }

    /// Staging memory in segments of [`memory`](Self::memory) bytes, given by rank.
    pub(super) fn new(own: Segment, peers: Vec<(usize, SegmentView)>, most: usize) -> Self {
        Self { own, peers, most, next: Mutex::new(0) }
    }

    /// Copies this rank's operand, of at most `most` bytes, to the staging memory. Returns its
    /// place, which is that of the other ranks' operands too.
    pub(super) fn stage(&self, operand: SharedSlice<'_>, stores: Stores) -> Result<Range<usize>, Error> {
        let place = self.place(operand.len())?;
        let into = self.own.bytes().slice(place.clone()).map_err(failed)?;
        reduce(Scalar::U8, Operation::Max, into, &[operand], stores).map_err(failed)?;
        Ok(place)
    }

    /// The operands that the other ranks have staged at a place, by rank.
    pub(super) fn others(&self, place: Range<usize>) -> impl Iterator<Item = Result<(usize, SharedSlice<'_>), Error>> {
        self.peers.iter().map(move |(rank, view)| {
            let operand = view.bytes().slice(place.clone()).map_err(failed)?;
            Ok((*rank, operand))
        })
    }

    /// The place of the next operand.
    fn place(&self, len: usize) -> Result<Range<usize>, Error> {
        if len > self.most {
            return Err(failed(format!("an operand of {len} bytes is too long to be staged")));
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let start = if *next + len > self.own.len() { 0 } else { *next };
        *next = start + len.next_multiple_of(LINE);
        Ok(start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_overlaps_neither_the_last_one_nor_the_end() {
        for most in [64, 1000, 4096] {
            assert!(Staging::memory(most) >= RING);
            let memory = Staging::least(most);
            let staging = Staging::new(Segment::new(memory).unwrap(), Vec::new(), most);
            let mut last = 0..0;
            for step in 0..2000 {
                let len = 1 + (step * 37 + step * step) % most;
                let place = staging.place(len).unwrap();
                assert_eq!((place.len(), place.start % LINE), (len, 0));
                assert!(place.end <= memory && (place.end <= last.start || last.end <= place.start));
                last = place;
            }
            assert!(staging.place(most + 1).is_err());
        }
    }
}
