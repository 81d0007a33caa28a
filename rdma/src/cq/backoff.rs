//! What waiting threads do before they sleep.

use std::time::Duration;

/// What a waiting [`Poller`](super::Poller) does before it sleeps.
///
/// The default spins for some microseconds and yields for 200, which suits threads that have a core
/// each or nearly so.
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
    /// How often to poll without a pause: 200 by default.
    pub spins: u32,
    /// How long to poll and offer the core to other threads after that: 200 microseconds by
    /// default.
    pub yields: Duration,
}

impl Backoff {
    /// Sleeps as soon as there is nothing.
    pub const SLEEP: Self = Self { spins: 0, yields: Duration::ZERO };
}

impl Default for Backoff {
    fn default() -> Self {
        Self { spins: 200, yields: Duration::from_micros(200) }
    }
}
