//! The wake-up protocol: a side sets a flag before it sleeps, and the other side, when it has work
//! for the sleeper, rings if the flag is set.
//!
//! The sleeper stores `asleep`, then checks all its sources of work once more; the waker publishes
//! its work, then loads `asleep`. All of these accesses are `*_ordered`, so at least one of the two
//! sides sees the other's store and no wake-up is lost. The waker clears the flag before it rings,
//! so there is one ring per sleep. A side whose application polls does not set the flag, so this
//! protocol never rings it.
//!
//! Either side may write any value at any time. A hostile side can only cause too many rings, or
//! too few for itself.

use super::words::Word;

/// Marks this side as asleep. Afterwards the caller must check all its sources of work once more.
#[inline]
pub(crate) fn arm<W: Word>(asleep: &W) {
    // A swap, because the waker may be clearing the flag at the same time, and loom does not order
    // a plain store against a concurrent swap.
    asleep.swap_ordered(1);
}

/// Marks this side as awake: the other side need not ring.
#[inline]
pub(crate) fn disarm<W: Word>(asleep: &W) {
    asleep.store(0);
}

/// Whether the other side has to be rung. The caller has just published work for the other side by
/// an ordered store. Returns true at most once per `arm`.
#[inline]
#[must_use = "the other side sleeps until it is rung"]
pub(crate) fn must_ring<W: Word>(asleep: &W) -> bool {
    asleep.load_ordered() != 0 && asleep.swap_ordered(0) != 0
}

#[cfg(all(test, loom))]
mod loom_tests;
