//! The wake-up protocol: a side that sleeps says so, and whoever gives it work rings.
//!
//! The sleeper stores `asleep`, then looks once more at everything that could wake it; the waker
//! publishes its work, then looks at `asleep`. Both are `*_ordered` accesses, so at least one of
//! the two sees the other: no wake-up is lost. The waker takes the flag away before it rings: one
//! ring per sleep. A side whose application polls does not set the flag and is never rung.
//!
//! Both sides may write any value at any time: the worst that a hostile one gets is too many rings,
//! or too few for itself.

use super::words::Word;

/// Says that this side goes to sleep. Afterwards it has to look at all its sources of work once
/// more.
#[inline]
pub(crate) fn arm<W: Word>(asleep: &W) {
    // Not a store: the waker may be taking the flag away, and loom does not know which of a store
    // and a swap was last.
    asleep.swap_ordered(1);
}

/// Says that this side is awake, and need not be rung.
#[inline]
pub(crate) fn disarm<W: Word>(asleep: &W) {
    asleep.store(0);
}

/// Whether the other side, for which work has just been published by an ordered store, has to be
/// rung. At most one call per `arm` says so.
#[inline]
#[must_use = "the other side sleeps until it is rung"]
pub(crate) fn must_ring<W: Word>(asleep: &W) -> bool {
    asleep.load_ordered() != 0 && asleep.swap_ordered(0) != 0
}

#[cfg(all(test, loom))]
#[path = "loom_tests.rs"]
mod loom_tests;
