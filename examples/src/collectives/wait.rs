//! Waiting: spin briefly, then give the core away, then sleep.
//!
//! With more ranks than cores the peer that we wait for may need this very core: a rank that only spins holds it until
//! the scheduler's tick, which is a thousand times longer than the message takes.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::bootstrap::Watch;

/// Yields between two looks at the clock and at the other ranks' health.
const YIELDS_PER_CHECK: u32 = 32;
/// How long to go on yielding before sleeping; waking a halted core costs some 25 us.
const YIELDING: Duration = Duration::from_millis(2);
/// The longest sleep: a death is noticed after this time at the latest.
const SLEEP: Duration = Duration::from_millis(20);

/// How a rank waits.
#[derive(Clone, Debug)]
pub struct Patience {
    spins: u32,
    stall: Duration,
    watch: Watch,
}

impl Patience {
    /// `shared_cores`: there are more ranks than cores, so spinning keeps others from running. `stall` is how long the
    /// others may make no progress at all.
    #[must_use]
    pub fn new(watch: Watch, shared_cores: bool, stall: Duration) -> Self {
        Self { spins: if shared_cores { 4 } else { 2000 }, stall, watch }
    }

    /// Polls until there is something; `sleep` blocks for at most the given time, or until there may be something.
    ///
    /// # Errors
    /// The poll's and the sleep's; where another rank has died; where nothing happens for too long.
    #[inline]
    pub fn wait<T>(
        &self,
        mut poll: impl FnMut() -> Result<Option<T>, Failure>,
        sleep: impl FnMut(Duration) -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        for _ in 0..self.spins {
            if let Some(value) = poll()? {
                return Ok(value);
            }
            std::hint::spin_loop();
        }
        self.wait_longer(poll, sleep)
    }

    #[cold]
    fn wait_longer<T>(
        &self,
        mut poll: impl FnMut() -> Result<Option<T>, Failure>,
        mut sleep: impl FnMut(Duration) -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let mut yields = 0u32;
        let mut nap = Duration::from_micros(50);
        loop {
            if let Some(value) = poll()? {
                return Ok(value);
            }
            yields = yields.wrapping_add(1);
            let waited = if yields % YIELDS_PER_CHECK == 0 { started.elapsed() } else { Duration::ZERO };
            if waited < YIELDING {
                std::thread::yield_now();
                continue;
            }
            yields = YIELDS_PER_CHECK - 1;
            self.watch.check()?;
            if waited > self.stall {
                return Err(Failure::new(format!(
                    "the other ranks made no progress for {} s; are they stopped?",
                    self.stall.as_secs()
                )));
            }
            sleep(nap)?;
            nap = (2 * nap).min(SLEEP);
        }
    }
}
