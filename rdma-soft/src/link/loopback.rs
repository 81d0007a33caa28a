//! The link of a process to itself: a queue of frames in private memory.

use std::collections::VecDeque;

use crate::engine::{Gather, Header, Outbound, Source, Target};

/// Limit of the bytes of payload: a few of the largest frames, so that they stay in a near cache.
const MAX_CAPACITY: usize = 256 << 10;

/// Limit of the queued frames.
const MAX_FRAMES: usize = 1024;

/// Alignment of payloads.
const ALIGN: usize = 64;

/// Frames from this process to itself, in order.
#[derive(Debug)]
pub(crate) struct Loopback {
    /// Header and payload length of each queued frame.
    frames: VecDeque<(Header, usize)>,
    /// The payloads of the queued frames, in order, from `read` to `written`.
    payloads: Box<[u8]>,
    read: usize,
    written: usize,
}

impl Loopback {
    /// An empty queue with space for `capacity` bytes of payload, or less.
    pub(crate) fn new(capacity: usize) -> Self {
        let payloads = vec![0; capacity.min(MAX_CAPACITY)].into_boxed_slice();
        Self { frames: VecDeque::with_capacity(MAX_FRAMES), payloads, read: 0, written: 0 }
    }

    /// Whether no frame is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Passes frames to `handle` until there is none or `budget` bytes were handled. True when
    /// frames are left.
    pub(crate) fn drain(&mut self, budget: &mut usize, mut handle: impl FnMut(&Header, Source<'_>)) -> bool {
        while *budget > 0 {
            let Some((header, len)) = self.frames.pop_front() else { break };
            handle(&header, Source::of(&self.payloads[self.read..self.read + len]));
            self.read += len.next_multiple_of(ALIGN);
            *budget = budget.saturating_sub(ALIGN + len);
        }
        if self.is_empty() {
            // Only an empty queue begins again at the start, so payloads never wrap.
            (self.read, self.written) = (0, 0);
        }
        !self.is_empty()
    }
}

impl Outbound for Loopback {
    fn max_payload(&self) -> usize {
        self.payloads.len() / 4
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        let Some(space) = self.payloads.get_mut(self.written..) else { return false };
        if self.frames.len() == MAX_FRAMES || !payload.copy_to(Target::of(space)) {
            return false;
        }
        self.frames.push_back((*header, payload.len()));
        self.written += payload.len().next_multiple_of(ALIGN);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn push(link: &mut Loopback, number: u64, len: usize) -> bool {
        let payload = vec![u8::try_from(number).unwrap(); len];
        link.try_push(&Header([number; 6]), &Gather::of(&[Source::of(&payload)]))
    }

    /// The numbers of the frames that a drain handles, after a check of their payloads.
    fn drain(link: &mut Loopback, mut budget: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        link.drain(&mut budget, |header, payload| {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to_slice(&mut bytes);
            assert!(bytes.iter().all(|byte| u64::from(*byte) == header.0[0]));
            numbers.push(header.0[0]);
        });
        numbers
    }

    #[test]
    fn frames_come_out_in_order_with_their_payloads() {
        let mut link = Loopback::new(4096);
        for (number, len) in [(1, 0), (2, 1), (3, 64), (4, 1000)] {
            assert!(push(&mut link, number, len));
        }
        assert_eq!(drain(&mut link, 1), [1]);
        assert_eq!(drain(&mut link, 100), [2, 3]);
        assert!(push(&mut link, 5, 7));
        assert_eq!(drain(&mut link, 10_000), [4, 5]);
        assert!(link.is_empty());
    }

    #[test]
    fn a_full_queue_refuses_frames_until_it_is_drained() {
        let mut link = Loopback::new(4096);
        let len = link.max_payload();
        assert_eq!((1..10).take_while(|number| push(&mut link, *number, len)).count(), 4);
        assert!(push(&mut link, 5, 0), "a frame without payload needs no room");
        assert_eq!(drain(&mut link, 1), [1]);
        assert!(!push(&mut link, 6, len));
        assert_eq!(drain(&mut link, 10_000), [2, 3, 4, 5]);
        assert!(push(&mut link, 6, len));
        assert_eq!(drain(&mut link, 10_000), [6]);
        assert_eq!((0..).take_while(|_| push(&mut link, 1, 0)).count(), MAX_FRAMES);
    }
}
