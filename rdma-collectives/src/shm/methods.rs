//! Chooses by trial between the two ways in which two ranks do an all-reduce in place.
//!
//! Which one is faster depends on the size and the processor. Copies that are staged are free of
//! lines that the peer's cache still has; shares move fewer bytes. A line that is still in a core's
//! first cache costs the other core twice as much as one in the second, and shares of short tensors
//! lie there, so short tensors are always staged. The first runs of each larger size try both.
//! Since both ranks have to do the same, rank 0 chooses: it leaves its choice next to its counter
//! before a run of its own that the other one waits for. Both are tried again after many runs,
//! because the system may have moved the ranks to other cores.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use crate::Error;

/// Bytes of a tensor up to which both ranks stage copies.
pub(super) const STAGED: usize = 64 << 10;
/// Runs of each method before one is chosen: those in which its stores are tried, those in which
/// the staging memory comes back to the caches, and those that count.
const RUNS: usize = 32 + 48 + COUNTED;
const COUNTED: usize = 9;
/// Runs after which the trials begin again.
const AGAIN: usize = 4096;
/// Bytes of the longest tensor of which both methods are tried.
pub(super) const LONGEST: usize = 1 << 20;
/// Sizes from `STAGED` to `LONGEST`, by their power of two.
pub(super) const SIZES: usize = index(LONGEST) + 1;

/// A way to do an all-reduce in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Method {
    /// Each rank stages its input, and reduces all inputs.
    #[default]
    Whole,
    /// Each rank reduces a share, and copies those of the others.
    Shares,
}

impl Method {
    /// The word by which rank 0 says its choice.
    fn word(self) -> u64 {
        u64::from(self == Self::Shares)
    }

    /// The method of a word, which may be any.
    fn of_word(word: u64) -> Self {
        if word == Self::Shares.word() { Self::Shares } else { Self::Whole }
    }
}

/// The methods of one rank, by size.
#[derive(Debug)]
pub(super) struct Methods(Mutex<[Trial; SIZES]>);

impl Default for Methods {
    fn default() -> Self {
        Self(Mutex::new([Trial::default(); SIZES]))
    }
}

/// The trials of a size, which both ranks count alike.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// Runs since the trials began.
    runs: usize,
    /// The times that count, by method.
    times: [[Duration; COUNTED]; 2],
    /// The choice of rank 0.
    chosen: Method,
}

impl Methods {
    /// Runs an all-reduce of so many bytes of two ranks by the method to be tried next, or by the
    /// chosen one.
    pub(super) fn run(
        &self,
        clock: &Clock,
        rank: usize,
        bytes: usize,
        run: impl FnOnce(Method) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let size = index(bytes.clamp(STAGED, LONGEST));
        let (stage, method) = self.with(size, |trial| trial.next());
        match stage {
            Stage::Chosen => return run(method),
            Stage::Tried => {
                let started = Instant::now();
                run(method)?;
                self.with(size, |trial| trial.record(method, started.elapsed()));
            }
            Stage::Agreed if rank == 0 => {
                let chosen = self.with(size, |trial| trial.faster());
                clock.choose(size, chosen.word())?;
                run(method)?;
                self.with(size, |trial| trial.chosen = chosen);
            }
            Stage::Agreed => {
                run(method)?;
                // The run has waited for a step that rank 0 has done after it chose.
                let chosen = Method::of_word(clock.chosen_by(0, size)?);
                self.with(size, |trial| trial.chosen = chosen);
            }
        }
        Ok(())
    }

    fn with<R>(&self, size: usize, body: impl FnOnce(&mut Trial) -> R) -> R {
        let mut trials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body(&mut trials[size])
    }
}

/// The index of a size of at least `STAGED` bytes.
const fn index(bytes: usize) -> usize {
    (bytes.ilog2() - STAGED.ilog2()) as usize
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its method is tried.
    Tried,
    /// Rank 0 says its choice.
    Agreed,
    /// Its method is the chosen one.
    Chosen,
}

impl Trial {
    /// Counts a run, and returns its stage and method.
    fn next(&mut self) -> (Stage, Method) {
        if self.runs == AGAIN {
            self.runs = 0;
        }
        self.runs += 1;
        match self.runs {
            runs if runs <= RUNS => (Stage::Tried, Method::Whole),
            runs if runs <= 2 * RUNS => (Stage::Tried, Method::Shares),
            runs if runs == 2 * RUNS + 1 => (Stage::Agreed, Method::Whole),
            _ => (Stage::Chosen, self.chosen),
        }
    }

    fn record(&mut self, method: Method, took: Duration) {
        let of_method = &mut self.times[usize::from(method == Method::Shares)];
        of_method[self.runs % COUNTED] = took;
    }

    /// The method with the shorter median.
    fn faster(&mut self) -> Method {
        let [whole, shares] = self.times.each_mut().map(|times| *times.select_nth_unstable(COUNTED / 2).1);
        if shares < whole { Method::Shares } else { Method::Whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tests::ranks;

    #[test]
    fn both_are_tried_and_the_faster_one_is_kept() {
        for faster in [Method::Whole, Method::Shares] {
            let mut trial = Trial::default();
            let mut tried = 0;
            for run in 0..2 * RUNS {
                let (stage, method) = trial.next();
                assert_eq!(stage, Stage::Tried);
                tried += usize::from(method == faster);
                // One run of nine is disturbed, and those in which stores are tried do not count.
                let (is_first, is_disturbed) = (run % RUNS < RUNS - COUNTED, run % COUNTED == 0);
                let is_short = (method == faster) != (is_first || is_disturbed);
                trial.record(method, Duration::from_micros(if is_short { 1 } else { 2 }));
            }
            assert_eq!((tried, trial.next().0, trial.faster()), (RUNS, Stage::Agreed, faster));
        }
    }

    /// The ranks' clocks may differ, and so may what their methods take.
    #[test]
    fn ranks_do_the_same_whatever_each_has_measured() {
        ranks(2, 11, |host, group| {
            let (clock, methods) = (host.clock(), Methods::default());
            for size in [100_000, 200_000] {
                let mut done = Vec::new();
                for run in 0..AGAIN + 2 * RUNS + 2 {
                    let step = |method| {
                        done.push(method);
                        let ready = clock.now() + 1;
                        clock.publish(ready)?;
                        clock.wait_for_all(ready)
                    };
                    methods.run(clock, group.rank(), size, step).unwrap();
                    // Rank 0 finds shares faster for one size, and rank 1 for the other one.
                    let finds_shares = (group.rank() == 0) == (size == 100_000);
                    if run % AGAIN == 2 * RUNS - 1 {
                        let times = [2, 1].map(|time| [Duration::from_secs(time); COUNTED]);
                        let [one, other] = times;
                        let times = if finds_shares { times } else { [other, one] };
                        methods.with(index(size), |trial| trial.times = times);
                    }
                }
                let chosen = if size == 100_000 { Method::Shares } else { Method::Whole };
                assert!(done[2 * RUNS + 1..AGAIN].iter().all(|&method| method == chosen), "{size}");
                assert_eq!(done[AGAIN..AGAIN + RUNS], [Method::Whole; RUNS]);
                assert_eq!(done.last(), Some(&chosen));
            }
        });
    }
}
