//! Counters of progress: each rank counts in a line of its own, which the others watch.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_mem::{Segment, SegmentView, SharedSlice, SliceError};

use super::failed;
use super::methods::{self, Methods};
use super::trials::Trials;
use crate::Error;
use crate::process::Maker;
use crate::wait::{Patience, Wait};

/// Most bytes that a rank gives to all others in one step.
pub(super) const SMALL: usize = 4096;
/// Bytes of a line.
const LINE: usize = 64;
/// Most bytes of a message that shares the line of its number.
pub(super) const INLINE: usize = LINE - 8;
/// Bytes of a slot: a line with the number of a small message, and the lines of a longer one.
const SLOT: usize = LINE + SMALL;
/// Byte offset of a rank's counter. What follows lies two lines further, since processors fetch
/// lines in pairs.
const COUNTER: usize = 0;
/// Byte offset of the step that ended the rank's last collective.
const ENDED: usize = 2 * LINE;
/// Byte offset of the first slot.
const SLOTS: usize = 4 * LINE;
/// Byte offset of the words in which a rank says its choices between methods.
const CHOICES: usize = SLOTS + 2 * SLOT;
/// Bytes of the memory of a clock.
pub(super) const MEMORY: usize = CHOICES + methods::SIZES * size_of::<u64>();

/// The counters and the small messages of all ranks.
///
/// All ranks count the same steps in the same order. A rank's counter says how many it has done,
/// but for the last step of a collective: other ranks watch the counter, so a store to it waits for
/// their caches, and the counter of the next collective follows at once. The last step, for which
/// only a rank waits that changes its memory, stands in a line that others read only then.
#[derive(Debug)]
pub(crate) struct Clock {
    maker: Maker,
    own: Segment,
    peers: Vec<(usize, SegmentView)>,
    patience: Patience,
    now: AtomicU64,
    /// Small messages sent.
    sent: AtomicU64,
    trials: Trials,
    methods: Methods,
}

impl Clock {
    /// A clock in a segment of [`MEMORY`] bytes and in those of the other ranks, given by rank.
    pub(super) fn new(own: Segment, peers: Vec<(usize, SegmentView)>, patience: Patience) -> Result<Self, Error> {
        let (maker, trials, methods) = (Maker::current()?, Trials::default(), Methods::default());
        Ok(Self { maker, own, peers, patience, now: AtomicU64::new(0), sent: AtomicU64::new(0), trials, methods })
    }

    /// The process whose memory this is.
    pub(super) fn maker(&self) -> Maker {
        self.maker
    }

    /// The number of steps that this rank has done.
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The trials of this rank's stores.
    pub(super) fn trials(&self) -> &Trials {
        &self.trials
    }

    /// The trials of this rank's methods.
    pub(super) fn methods(&self) -> &Methods {
        &self.methods
    }

    /// Leaves a choice for the other ranks, which see it once they have seen this rank's next step.
    pub(super) fn choose(&self, index: usize, choice: u64) -> Result<(), Error> {
        self.own.bytes().store_u64(CHOICES + index * size_of::<u64>(), choice).map_err(failed)
    }

    /// The choice that another rank has left.
    pub(super) fn chosen_by(&self, rank: usize, index: usize) -> Result<u64, Error> {
        let peer = self.peers.iter().find(|(peer, _)| *peer == rank);
        let (_, view) = peer.ok_or_else(|| failed(format!("no rank {rank} on this host")))?;
        view.bytes().load_u64(CHOICES + index * size_of::<u64>()).map_err(failed)
    }

    /// Says that this rank has done `step` steps.
    pub(super) fn publish(&self, step: u64) -> Result<(), Error> {
        self.now.store(step, Ordering::Relaxed);
        self.own.bytes().store_u64(COUNTER, step).map_err(failed)
    }

    /// Says that this rank has done `step` steps, of which the last one ends a collective: only
    /// [`settle`](Self::settle) and [`wait_for_end`](Self::wait_for_end) wait for it.
    pub(super) fn end(&self, step: u64) -> Result<(), Error> {
        self.now.store(step, Ordering::Relaxed);
        self.own.bytes().store_u64(ENDED, step).map_err(failed)
    }

    /// Waits until every other rank has done as many steps as this one: no rank reads this rank's
    /// memory any more.
    #[inline]
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.wait_for_end(self.now())
    }

    /// Waits until every other rank has done `step` steps, of which the last one may be the end of
    /// a collective.
    pub(super) fn wait_for_end(&self, step: u64) -> Result<(), Error> {
        self.peers.iter().try_for_each(|(rank, view)| self.wait(*rank, view, &[COUNTER, ENDED], step))
    }

    /// Waits until every other rank has done `step` steps, none of which ends a later collective.
    pub(super) fn wait_for_all(&self, step: u64) -> Result<(), Error> {
        self.peers.iter().try_for_each(|(rank, view)| self.wait(*rank, view, &[COUNTER], step))
    }

    /// Waits until a rank has done `step` steps.
    pub(super) fn wait_for(&self, rank: usize, step: u64) -> Result<(), Error> {
        let peer = self.peers.iter().find(|(peer, _)| *peer == rank);
        peer.map_or(Ok(()), |(rank, view)| self.wait(*rank, view, &[COUNTER], step))
    }

    /// Gives a small message to all ranks, which all give one.
    ///
    /// The ranks use two slots in turn: a rank gives its next message but one only after every rank
    /// has given the next one, and so has read this one.
    pub(super) fn give(&self, message: SharedSlice<'_>) -> Result<Given, Error> {
        let number = self.sent.load(Ordering::Relaxed) + 1;
        self.sent.store(number, Ordering::Relaxed);
        let at = SLOTS + (number % 2) as usize * SLOT;
        let start = at + if message.len() <= INLINE { 8 } else { LINE };
        let bytes = start..start + message.len();
        self.own.bytes().slice(bytes.clone()).and_then(|place| place.copy_from(message)).map_err(failed)?;
        self.own.bytes().store_u64(at, number).map_err(failed)?;
        Ok(Given { number, at, bytes })
    }

    /// Waits until every rank has given its message, and shows each rank's with its number.
    pub(super) fn each_given<'a>(
        &'a self,
        given: &Given,
        mut show: impl FnMut(usize, SharedSlice<'a>),
    ) -> Result<(), Error> {
        for (rank, view) in &self.peers {
            self.wait(*rank, view, &[given.at], given.number)?;
            show(*rank, view.bytes().slice(given.bytes.clone()).map_err(failed)?);
        }
        Ok(())
    }

    /// Waits until one of some words of a rank has reached a value.
    #[inline]
    fn wait(&self, rank: usize, view: &SegmentView, words: &[usize], value: u64) -> Result<(), Error> {
        let is_reached = || -> Result<bool, SliceError> {
            words.iter().try_fold(false, |is_reached, &at| Ok(is_reached || view.bytes().load_u64(at)? >= value))
        };
        let mut wait = Wait::default();
        while !is_reached().map_err(failed)? {
            let waiting = |error: Error| error.context(format!("waiting for rank {rank}")).waits_for(rank);
            self.pause(&mut wait).map_err(waiting)?;
        }
        Ok(())
    }

    /// Pauses once in a wait.
    #[inline]
    pub(super) fn pause(&self, wait: &mut Wait) -> Result<(), Error> {
        self.patience.rest(wait)
    }
}

/// A small message that this rank has given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    number: u64,
    /// Byte offset of the number.
    at: usize,
    bytes: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tests::ranks;

    /// The counter's line is watched by the other ranks' caches, so each store to it counts.
    #[test]
    fn the_end_of_a_collective_leaves_the_counter_and_settles_it() {
        ranks(2, 12, |host, group| {
            let clock = host.clock();
            let before = clock.own.bytes().as_shared().load_u64(COUNTER).unwrap();
            let ended = clock.now() + 1;
            assert!(before < ended);
            clock.end(ended).unwrap();
            assert_eq!(clock.own.bytes().as_shared().load_u64(COUNTER).unwrap(), before);
            clock.settle().unwrap();
            for (_, peer) in &clock.peers {
                assert_eq!(peer.bytes().load_u64(ENDED).unwrap(), ended);
            }
            group.barrier("the end").unwrap();
            // The next step stands in the counter, which is enough to settle the one before.
            clock.publish(ended + 1).unwrap();
            clock.wait_for_all(ended + 1).unwrap();
            clock.settle().unwrap();
        });
    }
}
