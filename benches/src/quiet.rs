//! Keeps other processes out of a measurement: waits for a quiet moment, and counts disturbances.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The machine counts as quiet if the share of busy time is below this value.
const QUIET: f64 = 0.10;

/// Waits until the cores have been idle for a moment, for at most `bound`.
pub fn wait(bound: Duration) {
    let start = Instant::now();
    loop {
        let Some(before) = busy_and_total() else { return };
        std::thread::sleep(Duration::from_millis(50));
        let Some(after) = busy_and_total() else { return };
        let (busy, total) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        if (total > 0 && share(busy, total) < QUIET) || start.elapsed() >= bound {
            return;
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    let permille = part.saturating_mul(1000) / whole.max(1);
    f64::from(u32::try_from(permille).unwrap_or(u32::MAX)) / 1000.0
}

/// Busy ticks and all ticks of all cores since the machine started.
fn busy_and_total() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).take(8).filter_map(|f| f.parse().ok()).collect();
    let total: u64 = fields.iter().sum();
    // The fourth and fifth fields are the idle time and the wait for storage.
    let idle = fields.get(3)? + fields.get(4)?;
    Some((total - idle, total))
}

/// The resources that this process has used since it began, or within a time.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Number of times that the scheduler has taken a core away. A measurement during which the
    /// number grew was disturbed.
    pub preemptions: u64,
    /// Processor time of all threads.
    pub processor: Duration,
}

impl Usage {
    /// The resources used since the process began.
    ///
    /// # Errors
    ///
    /// The error of `getrusage`.
    pub fn now() -> io::Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let microseconds = (usage.user_time() + usage.system_time()).num_microseconds();
        Ok(Self {
            preemptions: u64::try_from(usage.involuntary_context_switches()).unwrap_or(0),
            processor: Duration::from_micros(u64::try_from(microseconds).unwrap_or(0)),
        })
    }

    /// The resources used since `before`.
    ///
    /// # Errors
    ///
    /// The error of `getrusage`.
    pub fn since(before: &Self) -> io::Result<Self> {
        let now = Self::now()?;
        Ok(Self {
            preemptions: now.preemptions.saturating_sub(before.preemptions),
            processor: now.processor.saturating_sub(before.processor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_bounded() {
        let start = Instant::now();
        wait(Duration::ZERO);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(busy_and_total().is_some());
        Usage::since(&Usage::now().unwrap()).unwrap();
    }
}
