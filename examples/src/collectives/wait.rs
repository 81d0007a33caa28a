//! Waiting: spin briefly, then give the core away, then sleep.
//!
//! With more ranks than cores the peer that we wait for may need this very core: a rank that only
//! spins holds it until the scheduler's tick, which is a thousand times longer than the message
//! takes.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::bootstrap::Watch;

/// Yields between two looks at the clock and at the other ranks' health.
const YIELDS_PER_CHECK: u32 = 32;
/// How long to go on yielding before sleeping; waking a halted core costs some 25 us.
const YIELDING: Duration = Duration::from_millis(2);
/// The first sleep, and each is twice as long as the one before, up to the longest: a death is
/// noticed after this time at the latest.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_millis(1);

/// How a rank waits.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    spins: u32,
    stall: Duration,
    watch: Watch,
}

/// State of a wait; made by `Wait::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    turns: u32,
    started: Option<Instant>,
    naps: u32,
}

impl Wait {
    /// True at every 64th turn, for checks too expensive for each.
    pub(crate) fn is_time_to_look(&self) -> bool {
        self.turns % 64 == 63
    }
}

impl Patience {
    /// `shared_cores`: there are more ranks than cores, so spinning keeps others from running.
    /// `stall` is how long the others may make no progress at all.
    pub(crate) fn new(watch: Watch, shared_cores: bool, stall: Duration) -> Self {
        Self { spins: if shared_cores { 4 } else { 2000 }, stall, watch }
    }

    /// Lets some time pass, after the caller has looked and found nothing. With a duration, the
    /// caller has waited so long that it is to sleep, for that time at most.
    ///
    /// # Errors
    /// Where another rank has died, or nothing has happened for too long.
    #[inline]
    pub(crate) fn pause(&self, wait: &mut Wait) -> Result<Option<Duration>, Failure> {
        wait.turns = wait.turns.saturating_add(1);
        if wait.turns <= self.spins {
            std::hint::spin_loop();
            return Ok(None);
        }
        self.pause_longer(wait)
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
        // The wait has lasted longer than this shorter limit.
        patience.stall = Duration::ZERO;
        let failure = patience.pause(&mut wait).unwrap_err();
        assert!(failure.to_string().contains("no progress"), "{failure}");
    }
}
