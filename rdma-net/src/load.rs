//! How busy the drivers of a node are, and which one takes the next connection.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The connections of one driver, and whether it takes more.
#[derive(Debug, Default)]
pub(super) struct Load {
    connections: AtomicUsize,
    is_over: AtomicBool,
}

impl Load {
    /// Counts a connection, until the share is dropped.
    pub(super) fn share(self: &Arc<Self>) -> LoadShare {
        self.connections.fetch_add(1, Ordering::Relaxed);
        LoadShare(Arc::clone(self))
    }

    /// Notes that the driver takes no more connections.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether the driver takes connections: a hint, since it may end meanwhile.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A connection, or an attempt at one, that a [`Load`] counts.
#[derive(Debug)]
pub(super) struct LoadShare(Arc<Load>);

impl Drop for LoadShare {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Orders drivers for the next connection: those that take connections before others, then those
/// with fewer connections, and drivers with as many in turns.
pub(super) fn order<'a, T>(drivers: &mut [T], turn: usize, load: impl Fn(&T) -> &'a Load) {
    if drivers.is_empty() {
        return;
    }
    let turn = turn % drivers.len();
    drivers.rotate_left(turn);
    // Other threads change the loads meanwhile, so each is read once.
    drivers.sort_by_cached_key(|driver| (Reverse(load(driver).is_open()), load(driver).connections()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(loads: &[Arc<Load>], turn: usize) -> usize {
        let mut numbers: Vec<_> = (0..loads.len()).collect();
        order(&mut numbers, turn, |&number| &loads[number]);
        numbers[0]
    }

    #[test]
    fn the_driver_with_fewest_connections_comes_first_and_equal_ones_take_turns() {
        let loads = [(); 3].map(|()| Arc::<Load>::default());
        assert_eq!([0, 1, 2, 3].map(|turn| first(&loads, turn)), [0, 1, 2, 0]);
        let busy = [0, 0, 2].map(|at: usize| loads[at].share());
        assert_eq!([0, 1, 2].map(|turn| first(&loads, turn)), [1; 3]);
        let [one, ..] = busy;
        drop(one);
        let more = [loads[1].share(), loads[1].share()];
        assert_eq!(first(&loads, 1), 2, "of two drivers with one connection each");
        drop(more);
        loads[1].end();
        assert_ne!(first(&loads, 1), 1, "a driver that has ended comes last");
        let none: &mut [usize] = &mut [];
        order(none, 7, |&number| &loads[number]);
    }
}
