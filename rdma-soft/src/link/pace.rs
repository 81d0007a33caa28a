//! Whether large payloads are stored into a ring through the caches or past them.
//!
//! On processors whose cores read changed lines slowly from each other's caches,
//! [`rdma_mem::copy_for_peer`] stores past the caches: memory is at the same distance from all
//! cores, and a single message arrives sooner. A fast stream is an exception if both cores share
//! their last cache: the reader falls behind until the lines have left the writer's own cache for
//! the shared one, which is faster than memory. A virtual machine's cores may move at any time, so
//! the distance is measured while the stream runs.

use crate::engine::Time;

/// Bytes of large payloads between two samples.
const WINDOW: usize = 256 << 10;

/// Longest time of a window of a fast stream, in nanoseconds.
const FAST: u64 = 30_000;

/// Longest time in nanoseconds to read a line that a near core has just changed, with the time of
/// reading the clock: 40 within a core complex, 130 between two.
const NEAR: u64 = 90;

/// The score from which payloads are stored through the caches, and the largest score.
const CACHED: u8 = 3;
const MAX_SCORE: u8 = 6;

/// Fast windows without a break after which a stream is steady: messages of 4 MiB back and forth
/// are no stream.
const STEADY: u8 = 16;

/// State of the stream of large payloads of a link.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes since the last sample, and its time.
    bytes: usize,
    since: Time,
    /// Rises with each sample of a fast stream to a near core, falls with each other one.
    score: u8,
    /// Samples of a fast stream since its last break, up to [`STEADY`].
    steady: u8,
}

impl Pace {
    /// Counts `len` bytes. True if a sample is due.
    pub(crate) fn counts(&mut self, len: usize) -> bool {
        self.bytes += len;
        self.bytes >= WINDOW
    }

    /// Takes a sample at `now`: the time in nanoseconds that a line from the peer's core took, if
    /// the peer had changed the line.
    pub(crate) fn sample(&mut self, now: Time, line: Option<u64>) {
        let is_fast = now.0.saturating_sub(self.since.0) <= FAST;
        (self.bytes, self.since) = (0, now);
        self.steady = if is_fast { (self.steady + 1).min(STEADY) } else { 0 };
        match line {
            Some(line) if line > NEAR => self.score = self.score.saturating_sub(2),
            Some(_) if is_fast => self.score = (self.score + 1).min(MAX_SCORE),
            _ if !is_fast => self.score = self.score.saturating_sub(1),
            _ => {}
        }
    }

    /// Whether the stream is stored through the caches and has no breaks.
    pub(crate) fn is_steady(&self) -> bool {
        self.is_cached() && self.steady == STEADY
    }

    /// Whether to store through the caches.
    pub(crate) fn is_cached(&self) -> bool {
        self.score >= CACHED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The state after samples, each of the time of its window and that of its line.
    fn after(samples: &[(u64, Option<u64>)]) -> Pace {
        let (mut pace, mut now) = (Pace::default(), Time(1_000_000));
        for &(window, line) in samples {
            now = now.after(window);
            assert!(!pace.counts(WINDOW - 1));
            assert!(pace.counts(1));
            pace.sample(now, line);
        }
        pace
    }

    #[test]
    fn a_fast_stream_to_a_near_core_is_cached() {
        let (near, far, slow) = ((FAST, Some(NEAR)), (FAST, Some(NEAR + 1)), (FAST + 1, Some(NEAR)));
        let is_cached = |samples: &[_]| after(samples).is_cached();
        assert!(!is_cached(&[near; 3]), "the first window began long ago");
        assert!(is_cached(&[near; 4]));
        assert!(!is_cached(&[slow; 20]));
        assert!(!is_cached(&[far; 20]));
        let stream = [near; 20];
        assert!(is_cached(&[&stream[..], &[far]].concat()), "one sample may be wrong");
        assert!(!is_cached(&[&stream[..], &[far, far]].concat()), "the cores have moved");
        assert!(is_cached(&[&stream[..], &[slow, (FAST, None), slow, near, slow]].concat()), "it stutters");
        assert!(!is_cached(&[&stream[..], &[slow, (FAST + 1, None), slow, slow]].concat()), "it has ended");
    }

    #[test]
    fn a_stream_without_breaks_is_steady() {
        let (near, far, slow) = ((FAST, Some(NEAR)), (FAST, Some(NEAR + 1)), (FAST + 1, Some(NEAR)));
        let stream = vec![near; 1 + usize::from(STEADY)];
        assert!(after(&stream).is_steady());
        assert!(!after(&stream[1..]).is_steady());
        assert!(!after(&[&stream[..], &[slow]].concat()).is_steady());
        assert!(!after(&[&stream[..], &[far, far]].concat()).is_steady(), "the cores have moved");
    }
}
