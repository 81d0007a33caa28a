//! Timers of reliable connections, in the specification's codes.

use std::fmt;
use std::time::Duration;

/// The time that a requester waits for an acknowledgement before it retries: 4.096 us times a power
/// of two.
///
/// The device may wait up to four times as long.
///
/// # Examples
///
/// ```
/// use rdma::AckTimeout;
/// use std::time::Duration;
/// let timeout = AckTimeout::at_least(Duration::from_millis(60));
/// assert_eq!(timeout.code(), 14);
/// assert_eq!(timeout.duration(), Some(Duration::from_nanos(4096 << 14)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// No timeout: a dead peer is never noticed.
    pub const INFINITE: Self = Self(0);
    /// About 67 ms: the default of most programs.
    pub const DEFAULT: Self = Self(14);

    /// Makes a timeout from the specification's code, 0 (no timeout) to 31 (2.4 hours).
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The shortest timeout of at least this duration; the longest possible one if all are shorter.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        let code = (1..31).find(|&code| Self(code).duration().is_some_and(|it| it >= duration));
        Self(code.unwrap_or(31))
    }

    /// The specification's code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The timeout as a duration; `None` for no timeout.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << self.0)) }
    }
}

impl fmt::Debug for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => write!(f, "AckTimeout({duration:?})"),
            None => f.write_str("AckTimeout(infinite)"),
        }
    }
}

/// The time that a responder asks a requester to wait when no receive is posted.
///
/// # Examples
///
/// ```
/// use rdma::RnrTimer;
/// use std::time::Duration;
/// let timer = RnrTimer::at_least(Duration::from_micros(600));
/// assert_eq!(timer.duration(), Duration::from_micros(640));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

/// The delay of each code, in hundredths of a millisecond.
const RNR: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// 0.64 ms: the default of most programs.
    pub const DEFAULT: Self = Self(12);

    /// Makes a timer from the specification's code: 0 (655 ms), or 1 (0.01 ms) to 31 (491 ms).
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The shortest timer of at least this duration; the longest possible one if all are shorter.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        Self((1..32).find(|&code| Self(code).duration() >= duration).unwrap_or(0))
    }

    /// The specification's code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The timer as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR[self.0 as usize & 31] as u64 * 10)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({:?})", self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_is_at_least_and_no_longer_than_needed() {
        for micros in [0, 1, 10, 11, 500, 640, 641, 100_000, 491_520, 655_360] {
            let wanted = Duration::from_micros(micros);
            assert!(RnrTimer::at_least(wanted).duration() >= wanted, "{micros}");
            assert!(AckTimeout::at_least(wanted).duration().unwrap() >= wanted, "{micros}");
        }
        assert_eq!(RnrTimer::at_least(Duration::from_secs(10)).code(), 0);
        assert_eq!(AckTimeout::at_least(Duration::from_secs(1 << 40)).code(), 31);
        assert_eq!(AckTimeout::from_code(32), None);
        assert_eq!(AckTimeout::INFINITE.duration(), None);
    }
}
