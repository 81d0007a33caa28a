//! Announcements of messages: for each pair of ranks, a ring of entries in the sender's memory.
//!
//! An entry says where a message lies. Its number is stored last; the receiver, which expects that
//! number, then sees the rest. The receiver counts the messages that it has taken in memory of its
//! own, which frees the entries.

use rdma_mem::{Segment, SegmentView, SharedSlice};

use super::failed;
use crate::Error;

/// Entries of a ring.
const ENTRIES: usize = 32;
/// The same, as the difference of two message numbers.
const RING: u64 = ENTRIES as u64;
/// Bytes of an entry: its number, and the three words of an announcement.
const ENTRY: usize = 32;
/// Bytes of the counter of taken messages, which has a line of its own.
const TAKEN: usize = 64;
/// Bytes for each other rank: the counter of messages from it, and the ring of those to it.
const BOX: usize = TAKEN + ENTRIES * ENTRY;

/// The place of a message in its sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    /// The number of the segment.
    pub(super) segment: u64,
    /// The first byte.
    pub(super) start: u64,
    /// Number of bytes.
    pub(super) len: u64,
}

/// The rings between this rank and the others.
#[derive(Debug)]
pub(super) struct Mail {
    rank: usize,
    own: Segment,
    peers: Vec<(usize, SegmentView)>,
    /// Messages announced to each rank, and taken from each.
    sent: Vec<u64>,
    taken: Vec<u64>,
}

/// Bytes that the rings of one rank need.
pub(super) fn memory(world: usize) -> usize {
    world * BOX
}

impl Mail {
    /// Rings in a segment of [`memory`] bytes and in those of the other ranks, given by rank.
    pub(super) fn new(rank: usize, world: usize, own: Segment, peers: Vec<(usize, SegmentView)>) -> Self {
        Self { rank, own, peers, sent: vec![0; world], taken: vec![0; world] }
    }

    /// Announces a message to a rank, if its ring has space.
    pub(super) fn announce(&mut self, to: usize, message: Announcement) -> Result<bool, Error> {
        let sent = self.sent[to];
        if sent >= RING && !self.is_taken(to, sent - RING + 1)? {
            return Ok(false);
        }
        let entry = to * BOX + entry(sent);
        let Announcement { segment, start, len } = message;
        for (word, value) in [segment, start, len].into_iter().enumerate() {
            self.own.bytes().store_u64(entry + 8 + 8 * word, value).map_err(failed)?;
        }
        self.own.bytes().store_u64(entry, sent + 1).map_err(failed)?;
        self.sent[to] += 1;
        Ok(true)
    }

    /// Whether a rank has taken the message of a number, counted from 1.
    pub(super) fn is_taken(&self, to: usize, number: u64) -> Result<bool, Error> {
        Ok(self.view(to)?.load_u64(self.rank * BOX).map_err(failed)? >= number)
    }

    /// The next message from a rank, if it has announced one.
    pub(super) fn next(&self, from: usize) -> Result<Option<Announcement>, Error> {
        let (view, taken) = (self.view(from)?, self.taken[from]);
        let entry = self.rank * BOX + entry(taken);
        let word = |word: usize| view.load_u64(entry + 8 * word).map_err(failed);
        if word(0)? != taken + 1 {
            return Ok(None);
        }
        Ok(Some(Announcement { segment: word(1)?, start: word(2)?, len: word(3)? }))
    }

    /// Tells a rank that its next message has been read.
    pub(super) fn take(&mut self, from: usize) -> Result<(), Error> {
        self.taken[from] += 1;
        self.own.bytes().store_u64(from * BOX, self.taken[from]).map_err(failed)
    }

    fn view(&self, rank: usize) -> Result<SharedSlice<'_>, Error> {
        let view = self.peers.iter().find(|(peer, _)| *peer == rank);
        view.map(|(_, view)| view.bytes()).ok_or_else(|| failed(format!("no rank {rank} on this host")))
    }
}

/// Byte offset, in the box of a rank, of the entry of the message after `before` others.
fn entry(before: u64) -> usize {
    TAKEN + (before % RING) as usize * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mail of two ranks.
    fn pair() -> [Mail; 2] {
        let segments = [Segment::new(memory(2)).unwrap(), Segment::new(memory(2)).unwrap()];
        let views = segments.each_ref().map(|segment| SegmentView::map(segment.fd(), memory(2)).unwrap());
        let ([one, two], [of_one, of_two]) = (segments, views);
        [Mail::new(0, 2, one, vec![(1, of_two)]), Mail::new(1, 2, two, vec![(0, of_one)])]
    }

    #[test]
    fn announcements_arrive_in_order_and_a_full_ring_waits() {
        let [mut one, mut two] = pair();
        let message = |number: u64| Announcement { segment: number, start: number + 1, len: number + 2 };
        assert_eq!(two.next(0).unwrap(), None);
        for number in 0..RING {
            assert!(one.announce(1, message(number)).unwrap());
        }
        assert!(!one.announce(1, message(RING)).unwrap());
        for number in 0..3 * RING {
            assert_eq!(two.next(0).unwrap(), Some(message(number)));
            assert!(!one.is_taken(1, number + 1).unwrap());
            two.take(0).unwrap();
            assert!(one.is_taken(1, number + 1).unwrap());
            assert!(one.announce(1, message(number + RING)).unwrap());
        }
    }
}
