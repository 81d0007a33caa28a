//! All sinks of a work queue's results, at addresses that never change.

use std::sync::OnceLock;

use super::sink::Sink;

/// The number of sinks that are made first. Each later step makes twice as many as the one before.
const FIRST: usize = if cfg!(loom) { 1 } else { 16 };
/// The number of steps: enough for more than 2^27 sinks.
const STEPS: usize = 24;

/// A table of sinks that grows and never moves them.
pub(super) struct Sinks<R> {
    steps: [OnceLock<Box<[Sink<R>]>>; STEPS],
}

impl<R> Sinks<R> {
    pub(super) const fn new() -> Self {
        Self { steps: [const { OnceLock::new() }; STEPS] }
    }

    /// The sink with this number, if it was made.
    #[inline]
    pub(super) fn get(&self, index: u64) -> Option<&Sink<R>> {
        let place = usize::try_from(index).ok()? / FIRST + 1;
        let step = place.ilog2();
        let sinks = self.steps.get(step as usize)?.get()?;
        sinks.get(usize::try_from(index).ok()? - FIRST * ((1 << step) - 1))
    }

    /// The sinks of a step, if it was made.
    pub(super) fn step(&self, step: usize) -> Option<&[Sink<R>]> {
        self.steps.get(step)?.get().map(|sinks| &**sinks)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sink<R>> {
        self.steps.iter().map_while(OnceLock::get).flatten()
    }

    /// Makes more sinks. Returns the number of all.
    ///
    /// # Panics
    ///
    /// If there are more than 2^27 requests and reports.
    pub(super) fn grow(&self) -> usize {
        let step = self.steps.iter().take_while(|step| step.get().is_some()).count();
        let (first, last) = (FIRST * ((1 << step) - 1), FIRST * ((2 << step) - 1));
        let number = |index: usize| u32::try_from(index).expect("fewer than 2^32 sinks");
        let place = self.steps.get(step).expect("fewer than 2^27 requests and reports");
        place.get_or_init(|| (first..last).map(|index| Sink::new(number(index))).collect());
        last
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_sink_is_found_by_its_number() {
        let sinks = Sinks::<u8>::new();
        assert!(sinks.get(0).is_none());
        let mut len = 0;
        for _ in 0..5 {
            len = sinks.grow();
        }
        assert_eq!((sinks.iter().count(), len), (FIRST * 31, FIRST * 31));
        for (index, sink) in (0..).zip(sinks.iter()) {
            assert!(sinks.get(index).is_some_and(|found| std::ptr::eq(found, sink)));
        }
        assert!(sinks.get(len as u64).is_none() && sinks.get(u64::MAX).is_none());
    }
}
