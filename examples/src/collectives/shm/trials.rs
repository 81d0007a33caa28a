//! Chooses by trial whether results are stored into the caches or past them.
//!
//! Cores that share a cache read each other's results there. For cores that do not, or for results
//! that are larger than the cache, stores past the caches may be several times as fast. The first
//! runs of each kind and size try one and then the other, several times each: after a store past
//! the caches, a cached one is slow, and the first run of all finds its memory in no cache. So the
//! first quarter of each way does not count. Medians of the others are compared: the shortest run
//! may be one during which the other ranks were late, and left all of the memory's bandwidth to
//! this one. Both ways are tried again after many runs, because the system may have moved the ranks
//! to other cores. The choice changes no result, so each rank makes its own.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma_mem::Stores;

use crate::Failure;

/// Runs with each way to store before one is chosen, of operations on fewer bytes than `LONG`, and
/// of longer ones.
const TRIALS: [usize; 2] = [16, 4];
const LONG: usize = 8 << 20;
/// Runs after which the trials begin again.
const AGAIN: usize = 4096;
/// Sizes, by their power of two; larger ones count as the last.
const SIZES: usize = 40;
/// Number of kinds.
const KINDS: usize = 5;

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
}

/// The trials of one rank.
#[derive(Debug, Default)]
pub(super) struct Trials(Mutex<Vec<Trial>>);

/// The trials of a kind and size.
#[derive(Clone, Debug)]
struct Trial {
    /// Runs since the trials began.
    runs: usize,
    /// Runs to do with each way to store.
    trials: usize,
    /// Times that count, with cached stores, and with those past the caches.
    times: [Vec<Duration>; 2],
    /// The faster way, once the trials are over.
    faster: Stores,
}

impl Trials {
    /// Runs an operation on so many bytes, with the stores to be tried next, or the best ones.
    pub(super) fn run(
        &self,
        kind: Kind,
        bytes: usize,
        run: impl FnOnce(Stores) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
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
        Self::new(TRIALS[usize::from(bytes >= LONG)])
    }

    fn new(trials: usize) -> Self {
        Self { runs: 0, trials, times: [Vec::new(), Vec::new()], faster: Stores::Cached }
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
            *self = Self::new(self.trials);
        }
    }

    /// The stores of the next run.
    fn next(&self) -> Stores {
        if self.is_over() {
            self.faster
        } else if self.runs < self.trials {
            Stores::Cached
        } else {
            Stores::Streaming
        }
    }

    fn record(&mut self, stores: Stores, took: Duration) {
        if self.runs % self.trials >= self.trials / 4 {
            self.times[usize::from(stores == Stores::Streaming)].push(took);
        }
        self.runs += 1;
        if self.is_over() {
            let [cached, streaming] = self.times.each_mut().map(median);
            self.faster = if streaming < cached { Stores::Streaming } else { Stores::Cached };
        }
    }
}

/// The median of some times, which are taken.
fn median(times: &mut Vec<Duration>) -> Option<Duration> {
    let mut times = std::mem::take(times);
    times.sort_unstable();
    times.get(times.len() / 2).copied()
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

    /// As when the other ranks were late, and this one had the memory to itself.
    #[test]
    fn a_few_short_runs_decide_nothing() {
        for bytes in [5000, LONG] {
            let mut trial = Trial::of_size(bytes);
            while !trial.is_over() {
                let is_short = trial.runs % trial.trials == trial.trials / 2;
                let time = if is_short { 1 } else { 10 - trial.runs / trial.trials };
                trial.record(trial.next(), Duration::from_micros(time as u64));
            }
            assert_eq!(trial.next(), Stores::Streaming, "{bytes} bytes");
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
        for (kind, bytes, runs) in [(Kind::Whole, 5000, TRIALS[0]), (Kind::Blocks, usize::MAX, TRIALS[1])] {
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
