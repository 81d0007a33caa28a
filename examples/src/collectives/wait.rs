//! Waiting: spin briefly, then yield the core, then sleep.
//!
//! With more ranks than cores, the awaited peer may need this very core: a rank that only spins
//! holds the core until the scheduler's tick, a thousand times longer than a message takes.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::bootstrap::Watch;

/// Yields between two checks of the clock and of the other ranks.
const YIELDS_PER_CHECK: u32 = 32;
/// Time to go on yielding before sleeping; waking a halted core costs some 25 us.
const YIELDING: Duration = Duration::from_millis(2);
/// Durations of the first and of the longest sleep; each sleep is twice as long as the one before.
/// A rank's death is noticed after the longest sleep at the latest.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_millis(1);

/// The waiting policy of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    spins: u32,
    stall: Duration,
    watch: Watch,
}

/// The state of one wait; starts as `Wait::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    turns: u32,
    started: Option<Instant>,
    naps: u32,
}

impl Wait {
    /// True at every 64th turn, for checks that are too expensive at each turn.
    pub(crate) fn is_time_to_look(&self) -> bool {
        self.turns % 64 == 63
    }
}

impl Patience {
    /// `shared_cores` says that there are more ranks than cores, so that spinning keeps other ranks
    /// from running. `stall` is the longest time without any progress.
    pub(crate) fn new(watch: Watch, shared_cores: bool, stall: Duration) -> Self {
        Self { spins: if shared_cores { 4 } else { 2000 }, stall, watch }
    }

    /// Pauses briefly, after the caller has looked for progress and found none. If a duration is
    /// returned, the wait has been long and the caller should sleep for at most that time.
    ///
    /// # Errors
    /// If another rank has died, or nothing has happened for `stall`.
    #[inline]
    pub(crate) fn pause(&self, wait: &mut Wait) -> Result<Option<Duration>, Failure> {
        wait.turns = wait.turns.saturating_add(1);
        if wait.turns <= self.spins {
            std::hint::spin_loop();
            return Ok(None);
        }
        self.pause_longer(wait)
    }

    /// Pauses as [`pause`](Self::pause) does, and sleeps where the wait has been long.
    ///
    /// # Errors
    /// Those of [`pause`](Self::pause).
    #[inline]
    pub(crate) fn rest(&self, wait: &mut Wait) -> Result<(), Failure> {
        if let Some(nap) = self.pause(wait)? {
            std::thread::sleep(nap);
        }
        Ok(())
    }

    #[cold]
    fn pause_longer(&self, wait: &mut Wait) -> Result<Option<Duration>, Failure> {
        let started = *wait.started.get_or_insert_with(Instant::now);
        if wait.naps == 0 && wait.turns % YIELDS_PER_CHECK != 0 {
            std::thread::yield_now();
            return Ok(None);
        }
        let waited = started.elapsed();
        self.watch.check()?;
        if waited < YIELDING {
            std::thread::yield_now();
            return Ok(None);
        }
        if waited > self.stall {
            return Err(Failure::new(format!(
                "the other ranks made no progress for {} s; are they stopped?",
                self.stall.as_secs()
            )));
        }
        let nap = FIRST_SLEEP.saturating_mul(1 << wait.naps.min(16)).min(SLEEP);
        wait.naps += 1;
        Ok(Some(nap))
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
        assert!(naps[0] == FIRST_SLEEP && naps.is_sorted() && naps[7] == SLEEP, "{naps:?}");
        // The wait has already lasted longer than this new limit.
        patience.stall = Duration::ZERO;
        let failure = patience.pause(&mut wait).unwrap_err();
        assert!(failure.to_string().contains("no progress"), "{failure}");
    }
}
