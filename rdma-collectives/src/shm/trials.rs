//! Chooses by trial whether results are stored into the caches or past them.
//!
//! Cores that share a cache read each other's results there. For cores that do not, or for results
//! that are larger than the cache, stores past the caches may be several times as fast. The first
//! runs of each kind and size try one and then the other, several times each: after a store past
//! the caches, a cached one is slow, and the first run of all finds its memory in no cache. So the
//! first quarter of each way does not count. Both are tried again after many runs, because the
//! system may have moved the ranks to other cores. The choice changes no result, so each rank makes
//! its own.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma_mem::Stores;

use crate::Error;

/// Runs with each way to store before one is chosen, of operations on fewer bytes than `LONG`, and
/// of longer ones.
const TRIALS: [usize; 2] = [16, 4];
const LONG: usize = 8 << 20;
/// Runs after which the trials begin again.
const AGAIN: usize = 4096;
/// Sizes, by their power of two; larger ones count as the last.
const SIZES: usize = 40;
/// Number of kinds.
const KINDS: usize = 6;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each rank reduces all inputs.
    Whole,
    /// The same in the memory of the inputs, of which copies are staged.
    WholeInPlace,
    /// Each rank reduces a share, and copies those of the others.
    Shares,
    /// The same in the memory of the inputs.
    SharesInPlace,
    /// Each rank reads blocks that no rank reads after it.
    Blocks,
    /// The same to the memory of its input, where a cached store may take half the time.
    BlocksInPlace,
}

impl Kind {
    /// An operation in which each rank reads blocks.
    pub(super) fn blocks(in_place: bool) -> Self {
        if in_place { Self::BlocksInPlace } else { Self::Blocks }
    }
}

/// The trials of one rank.
#[derive(Debug, Default)]
pub(super) struct Trials(Mutex<Vec<Trial>>);

/// The trials of a kind and size.
#[derive(Clone, Debug, Default)]
struct Trial {
    /// Runs since the trials began.
    runs: usize,
    /// Runs to do with each way to store.
    trials: usize,
    /// Shortest time with cached stores, and with those past the caches.
    best: [Option<Duration>; 2],
}

impl Trials {
    /// Runs an operation on so many bytes, with the stores to be tried next, or the best ones.
    pub(super) fn run(
        &self,
        kind: Kind,
        bytes: usize,
        run: impl FnOnce(Stores) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let size = (bytes.max(1).ilog2() as usize).min(SIZES - 1);
        let index = kind as usize * SIZES + size;
        let (stores, is_chosen) = self.with(index, |trial| {
            trial.age();
            (trial.next(), trial.is_over())
        });
        if is_chosen {
            return run(stores);
        }
        let started = Instant::now();
        run(stores)?;
        let took = started.elapsed();
        self.with(index, |trial| trial.record(stores, took));
        Ok(())
    }

    fn with<R>(&self, index: usize, body: impl FnOnce(&mut Trial) -> R) -> R {
        let mut trials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if trials.is_empty() {
            trials.extend((0..KINDS * SIZES).map(|index| Trial::of_size(1 << (index % SIZES))));
        }
        body(&mut trials[index])
    }
}

impl Trial {
    fn of_size(bytes: usize) -> Self {
        Self { trials: TRIALS[usize::from(bytes >= LONG)], ..Self::default() }
    }

    fn is_over(&self) -> bool {
        self.runs >= 2 * self.trials
    }

    /// Counts a run whose stores are chosen, and begins again after many of them.
    fn age(&mut self) {
        if self.is_over() {
            self.runs += 1;
        }
        if self.runs > AGAIN {
            *self = Self { trials: self.trials, ..Self::default() };
        }
    }

    /// The stores of the next run.
    fn next(&self) -> Stores {
        let streams = if self.is_over() { self.best[1] < self.best[0] } else { self.runs >= self.trials };
        if streams { Stores::Streaming } else { Stores::Cached }
    }

    fn record(&mut self, stores: Stores, took: Duration) {
        if self.runs % self.trials >= self.trials / 4 {
            let best = &mut self.best[usize::from(stores == Stores::Streaming)];
            *best = Some(best.map_or(took, |best| best.min(took)));
        }
        self.runs += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_tried_and_the_faster_one_is_kept() {
        for faster in [Stores::Cached, Stores::Streaming] {
            let mut trial = Trial::of_size(5000);
            let mut tried = 0;
            while !trial.is_over() {
                let stores = trial.next();
                tried += usize::from(stores == faster);
                trial.record(stores, Duration::from_micros(if stores == faster { 1 } else { 2 }));
            }
            assert_eq!((tried, trial.next()), (TRIALS[0], faster));
        }
    }

    #[test]
    fn the_choice_follows_when_the_other_way_becomes_faster() {
        let mut trial = Trial::of_size(5000);
        for faster in [Stores::Cached, Stores::Streaming, Stores::Cached] {
            let mut chosen = 0;
            for _ in 0..3 * AGAIN {
                trial.age();
                let stores = trial.next();
                if !trial.is_over() {
                    trial.record(stores, Duration::from_micros(if stores == faster { 1 } else { 2 }));
                }
                chosen += usize::from(stores == faster);
            }
            assert!(chosen > AGAIN, "{faster:?} {chosen} times");
        }
    }

    #[test]
    fn kinds_and_sizes_are_tried_apart() {
        let trials = Trials::default();
        let [apart, in_place] = [false, true].map(Kind::blocks);
        for (kind, bytes, runs) in
            [(Kind::Whole, 5000, TRIALS[0]), (apart, usize::MAX, TRIALS[1]), (in_place, usize::MAX, TRIALS[1])]
        {
            for run in 0..2 * runs {
                let check = |stores| {
                    assert_eq!(stores == Stores::Streaming, run >= runs);
                    Ok(())
                };
                trials.run(kind, bytes, check).unwrap();
            }
        }
    }
}
