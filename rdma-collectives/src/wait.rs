//! Waiting: spin briefly, then yield the core, then sleep.
//!
//! With more ranks than cores, the awaited peer may need this very core: a rank that only spins
//! holds the core until the scheduler's tick, a thousand times longer than a message takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma::{Backoff, Pause, Pauses};

use crate::Error;
use crate::bootstrap::Watch;
use crate::cause::Cause;

/// Yields between two checks of the clock and of the other ranks.
const YIELDS_PER_CHECK: u32 = 32;
/// Time to go on yielding before sleeping; waking a halted core costs some 25 us.
const YIELDING: Duration = Duration::from_millis(2);

/// The waiting policy of a rank.
#[derive(Clone, Debug)]
pub struct Patience {
    backoff: Backoff,
    stall: Duration,
    watch: Watch,
    naps: Arc<AtomicU64>,
    deadline: Arc<Deadline>,
}

/// The end of the operation in progress, in nanoseconds after `start`; 0 if there is no limit.
#[derive(Debug)]
struct Deadline {
    start: Instant,
    at: AtomicU64,
    /// The limit of which this is the end, in nanoseconds.
    limit: AtomicU64,
}

/// The state of one wait; starts as `Wait::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    turns: u32,
    started: Option<Instant>,
    pauses: Pauses,
}

impl Wait {
    /// True at every 64th turn, for checks that are too expensive at each turn.
    #[must_use]
    pub fn is_time_to_look(&self) -> bool {
        self.turns % 64 == 63
    }
}

impl Patience {
    /// `shared_cores` says that there are more ranks than cores, so that spinning keeps other ranks
    /// from running. `stall` is the longest time without any progress.
    #[must_use]
    pub fn new(watch: Watch, shared_cores: bool, stall: Duration) -> Self {
        let spins = if shared_cores { 4 } else { 2000 };
        // A rank's death is noticed after the longest nap at the latest.
        let deadline = Arc::new(Deadline { start: Instant::now(), at: AtomicU64::new(0), limit: AtomicU64::new(0) });
        let backoff = Backoff { spins, yields: YIELDING, ..Backoff::default() };
        Self { backoff, stall, watch, naps: Arc::default(), deadline }
    }

    /// Pauses briefly, after the caller has looked for progress and found none. If a duration is
    /// returned, the wait has been long and the caller should sleep for at most that time.
    ///
    /// # Errors
    /// If another rank has died, or nothing has happened for `stall`.
    #[inline]
    pub fn pause(&self, wait: &mut Wait) -> Result<Option<Duration>, Error> {
        wait.turns = wait.turns.saturating_add(1);
        let (is_time, started) = (wait.turns % YIELDS_PER_CHECK == 0, &mut wait.started);
        let pause = self.backoff.pause(&mut wait.pauses, || {
            let started = *started.get_or_insert_with(Instant::now);
            if is_time { started.elapsed() } else { Duration::ZERO }
        });
        match pause {
            Pause::Nap(nap) => {
                self.check(wait)?;
                self.naps.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(nap));
            }
            Pause::Yield if is_time => self.watch.check()?,
            Pause::Spin | Pause::Yield => {}
        }
        pause.take();
        Ok(None)
    }

    /// Pauses as [`pause`](Self::pause) does, and sleeps where the wait has been long.
    ///
    /// # Errors
    /// Those of [`pause`](Self::pause).
    #[inline]
    pub fn rest(&self, wait: &mut Wait) -> Result<(), Error> {
        if let Some(nap) = self.pause(wait)? {
            std::thread::sleep(nap);
        }
        Ok(())
    }

    /// Limits the time of an operation that begins now. Waits look at the limit when they have
    /// become naps, so an operation ends some milliseconds late.
    pub fn limit(&self, limit: Option<Duration>) {
        self.limit_rest(limit.map(|limit| (limit, limit)));
    }

    /// The same for an operation that has begun before: the time that is left, and the limit.
    pub(crate) fn limit_rest(&self, rest: Option<(Duration, Duration)>) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = rest.map_or(0, |(left, limit)| {
            self.deadline.limit.store(nanoseconds(limit), Ordering::Relaxed);
            nanoseconds(self.deadline.start.elapsed().saturating_add(left)).max(1)
        });
        self.deadline.at.store(at, Ordering::Relaxed);
    }

    /// The limit of the present operation, for tests.
    #[cfg(test)]
    pub(crate) fn until(&self) -> Option<u64> {
        Some(self.deadline.at.load(Ordering::Relaxed)).filter(|&at| at != 0)
    }

    /// How often a wait was so long that the caller was to sleep.
    #[must_use]
    pub fn naps(&self) -> u64 {
        self.naps.load(Ordering::Relaxed)
    }

    #[cold]
    fn check(&self, wait: &Wait) -> Result<(), Error> {
        self.watch.check()?;
        if wait.started.is_some_and(|started| started.elapsed() > self.stall) {
            let (seconds, limit) = (self.stall.as_secs(), self.stall);
            let text = format!(
                "the other ranks made no progress for {seconds} s; are they stopped, or do they do something else?"
            );
            return Err(Error::timed_out(text, limit).with_cause(Cause::Stalled { limit }));
        }
        let at = self.deadline.at.load(Ordering::Relaxed);
        if at != 0 && self.deadline.start.elapsed().as_nanos() >= u128::from(at) {
            let limit = Duration::from_nanos(self.deadline.limit.load(Ordering::Relaxed));
            return Err(Error::timed_out("the operation has not ended in time", limit));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_become_naps_and_end() {
        let mut patience = Patience::new(Watch::new(), true, Duration::from_secs(3600));
        let mut wait = Wait::default();
        let mut naps = Vec::new();
        while naps.len() < 8 {
            naps.extend(patience.pause(&mut wait).unwrap());
        }
        let [first, longest] = [50, 1000].map(Duration::from_micros);
        assert!(naps[0] == first && naps.is_sorted() && naps[7] == longest, "{naps:?}");
        // The wait has already lasted longer than this new limit.
        patience.stall = Duration::ZERO;
        let failure = patience.pause(&mut wait).unwrap_err();
        assert!(failure.to_string().contains("no progress"), "{failure}");
    }
}
