//! The policy of waiting: a thread spins, then yields its core, then naps.
//!
//! Spinning has the lowest latency. But if more threads wait than there are cores, a spinning
//! thread can keep the thread that would end the wait from running. The policy reads no clock and
//! never sleeps: its caller tells the time, and does what the policy says.

use std::hint;
use std::thread;
use std::time::Duration;

/// The first nap of a wait. Each further nap is twice as long as the one before.
const FIRST_NAP: Duration = Duration::from_micros(50);

/// How a waiting thread, for example that of a [`Poller`](super::Poller), pauses between two looks
/// for what it waits for.
///
/// The default spins for some microseconds, then yields for 200, and then naps. This suits programs
/// with about one core per thread.
///
/// # Examples
///
/// A wait for a peer's write to memory:
///
/// ```
/// use std::time::{Duration, Instant};
/// use rdma::{Backoff, Pauses};
///
/// # let mut looks = 0;
/// # let mut has_arrived = || { looks += 1; looks > 300 };
/// // Whoever shares a core with the peer yields soon.
/// let backoff = Backoff { spins: 4, yields: Duration::from_millis(2), ..Backoff::default() };
/// let (start, mut pauses) = (Instant::now(), Pauses::default());
/// while !has_arrived() {
///     backoff.pause(&mut pauses, || start.elapsed()).take();
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// How many times to look without giving up the core: 200 by default. [`u32::MAX`] is for ever.
    pub spins: u32,
    /// How long to look after that while yielding the core to other threads between two looks: 200
    /// microseconds by default.
    pub yields: Duration,
    /// The longest nap: 1 millisecond by default. The first is 50 microseconds, and each other one
    /// twice as long as the one before.
    pub longest_nap: Duration,
}

impl Backoff {
    /// Naps as soon as a look finds nothing, without spinning or yielding.
    pub const SLEEP: Self = Self { spins: 0, yields: Duration::ZERO, longest_nap: Duration::from_millis(1) };

    /// The next pause of a wait, after a look that has found nothing. `waited` tells the time since
    /// the wait began; it is called only if the wait has had its spins and no nap.
    #[inline]
    pub fn pause(&self, pauses: &mut Pauses, waited: impl FnOnce() -> Duration) -> Pause {
        if pauses.turns < self.spins {
            // Never reaches `u32::MAX`, which spins for ever.
            pauses.turns = (pauses.turns + 1).min(u32::MAX - 1);
            return Pause::Spin;
        }
        self.longer(pauses, waited)
    }

    #[cold]
    fn longer(&self, pauses: &mut Pauses, waited: impl FnOnce() -> Duration) -> Pause {
        if pauses.naps == 0 && waited() < self.yields {
            return Pause::Yield;
        }
        let nap = FIRST_NAP.saturating_mul(1 << pauses.naps.min(31));
        pauses.naps = pauses.naps.saturating_add(1);
        Pause::Nap(nap.min(self.longest_nap))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { spins: 200, yields: Duration::from_micros(200), ..Self::SLEEP }
    }
}

/// The pauses that one wait has had; a wait begins with the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pauses {
    turns: u32,
    naps: u32,
}

/// A pause of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Looks again at once.
    Spin,
    /// Yields the core to other threads.
    Yield,
    /// Sleeps for a time, unless the thread can sleep until it is woken.
    Nap(Duration),
}

impl Pause {
    /// Pauses this thread.
    #[inline]
    pub fn take(self) {
        match self {
            Self::Spin => hint::spin_loop(),
            Self::Yield => thread::yield_now(),
            Self::Nap(time) => thread::sleep(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_wait_spins_then_yields_then_naps_for_longer_and_longer() {
        let backoff = Backoff { spins: 2, yields: 2 * MS, ..Backoff::default() };
        let mut pauses = Pauses::default();
        let no_clock = || panic!("a spinning thread reads no clock");
        assert_eq!([(); 2].map(|()| backoff.pause(&mut pauses, no_clock)), [Pause::Spin; 2]);
        assert_eq!([Duration::ZERO, MS].map(|time| backoff.pause(&mut pauses, || time)), [Pause::Yield; 2]);
        let naps = [50, 100, 200, 400, 800, 1000, 1000].map(|us| Pause::Nap(Duration::from_micros(us)));
        // Once it naps, it naps on, whatever the time is.
        assert_eq!([2, 0, 0, 3, 4, 5, 6].map(|ms| backoff.pause(&mut pauses, || ms * MS)), naps);
    }

    #[test]
    fn naps_end_at_their_limit_and_spins_without_a_limit_never_end() {
        let mut pauses = Pauses { turns: 0, naps: u32::MAX };
        assert_eq!(Backoff::SLEEP.pause(&mut pauses, || MS), Pause::Nap(MS));
        let brief = Backoff { longest_nap: Duration::from_micros(20), ..Backoff::SLEEP };
        assert_eq!(brief.pause(&mut Pauses::default(), || MS), Pause::Nap(Duration::from_micros(20)));
        let patient = Backoff { longest_nap: Duration::MAX, ..Backoff::SLEEP };
        let mut pauses = Pauses { turns: 0, naps: 20 };
        let naps = [20, 21].map(|naps| Pause::Nap(FIRST_NAP * (1 << naps)));
        assert_eq!([(); 2].map(|()| patient.pause(&mut pauses, || MS)), naps);
        let mut pauses = Pauses { turns: u32::MAX - 2, naps: 0 };
        let hot = Backoff { spins: u32::MAX, ..Backoff::default() };
        assert_eq!([(); 3].map(|()| hot.pause(&mut pauses, || MS)), [Pause::Spin; 3]);
    }
}
