//! How waiting threads spin and yield before they sleep.

use std::time::Duration;

/// How a waiting [`Poller`](super::Poller) spins and yields before it sleeps.
///
/// The default spins for some microseconds and then yields for 200. This suits programs with about
/// one core per thread.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma::Backoff;
///
/// // Latency above all, on a core of its own.
/// let hot = Backoff { spins: u32::MAX, ..Backoff::default() };
/// // Hundreds of connections, most of them idle.
/// assert_eq!(Backoff::SLEEP, Backoff { spins: 0, yields: Duration::ZERO });
/// # let _ = hot;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// How many times to poll without a pause: 200 by default.
    pub spins: u32,
    /// How long to poll after that while yielding the core to other threads between polls: 200
    /// microseconds by default.
    pub yields: Duration,
}

impl Backoff {
    /// Sleeps as soon as a poll finds no completion, without spinning or yielding.
    pub const SLEEP: Self = Self { spins: 0, yields: Duration::ZERO };
}

impl Default for Backoff {
    fn default() -> Self {
        Self { spins: 200, yields: Duration::from_micros(200) }
    }
}
