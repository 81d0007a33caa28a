//! The node's clock.

use crate::engine::Time;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec to a live one; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Time(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}
