//! Options of a driver.

use std::time::Duration;

use crate::cq::Backoff;

/// How a [`Driver`](super::Driver) waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// It never sleeps: lowest latency, and a core in use all the time.
    BusyPoll,
    /// It sleeps as soon as it finds no completion.
    EventDriven,
    /// It sleeps after this number of turns without a completion.
    Adaptive {
        /// The number of turns; between two of them other tasks run.
        polls: u32,
    },
}

impl Default for Strategy {
    /// 20 turns, which take less than a microsecond, and then sleep.
    fn default() -> Self {
        Self::Adaptive { polls: 20 }
    }
}

/// Options of [`Driver::new`](super::Driver::new) and [`Reactor::new`](super::Reactor::new).
#[derive(Debug, Clone)]
#[must_use]
pub struct DriverOptions {
    pub(super) depth: u32,
    pub(super) completion_vector: u32,
    pub(super) strategy: Strategy,
    pub(super) yields: Duration,
    pub(super) budget: usize,
}

impl DriverOptions {
    /// 1024 entries, and 20 turns before the driver sleeps.
    pub fn new() -> Self {
        let (strategy, yields) = (Strategy::default(), Duration::from_micros(200));
        Self { depth: 1024, completion_vector: 0, strategy, yields, budget: 256 }
    }

    setters! {
        /// Sets the number of entries of the completion queue: the depths of all its queue pairs
        /// together. 1024 by default.
        depth(entries: u32) = entries;
        /// Sets the [completion vector](crate::CqBuilder::completion_vector) that wakes the driver:
        /// 0 by default.
        completion_vector(vector: u32) = vector;
        /// Sets how the driver waits: 20 turns, then sleep, by default.
        strategy(strategy: Strategy) = strategy;
        /// Sets how long [`Driver::wait`](super::Driver::wait) yields its core to other threads,
        /// after its turns and before it sleeps: 200 microseconds by default.
        yields(duration: Duration) = duration;
        /// Sets about how many completions the driver delivers before other tasks run: 256 by
        /// default.
        budget(completions: usize) = completions.max(1);
    }

    /// The turns before a sleep.
    pub(super) fn backoff(&self) -> Backoff {
        let (spins, yields) = match self.strategy {
            Strategy::BusyPoll => (u32::MAX, Duration::ZERO),
            Strategy::EventDriven => (0, Duration::ZERO),
            Strategy::Adaptive { polls } => (polls, self.yields),
        };
        Backoff { spins, yields, ..Backoff::SLEEP }
    }
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self::new()
    }
}
