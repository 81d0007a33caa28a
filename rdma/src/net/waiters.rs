//! Tasks that wait for the same thing, served in the order in which they came.

use std::collections::VecDeque;
use std::task::Waker;

/// A queue of waiting tasks.
///
/// Only the first task may take what all wait for. The task stays in the queue until it has taken,
/// or gives up: then the next one is first and must be woken if more is there.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    queue: VecDeque<(u64, Waker)>,
    next: u64,
}

/// A task's place in a [`Waiters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Waiters {
    /// Whether a task may take: the one that is first, or a new one if none waits.
    pub(super) fn is_turn(&self, place: Option<Place>) -> bool {
        match self.queue.front() {
            None => true,
            Some((first, _)) => place == Some(Place(*first)),
        }
    }

    /// Adds a task at the end, or replaces its waker.
    pub(super) fn wait(&mut self, place: &mut Option<Place>, waker: &Waker) {
        let known = place.and_then(|Place(id)| self.queue.iter_mut().find(|(known, _)| *known == id));
        match known {
            Some((_, known)) => known.clone_from(waker),
            None => {
                *place = Some(Place(self.next));
                self.queue.push_back((self.next, waker.clone()));
                self.next += 1;
            }
        }
    }

    /// Removes a task that has taken or gives up.
    pub(super) fn leave(&mut self, place: &mut Option<Place>) {
        if let Some(Place(id)) = place.take() {
            self.queue.retain(|(known, _)| *known != id);
        }
    }

    /// The waker of the first task.
    pub(super) fn first(&self) -> Option<Waker> {
        self.queue.front().map(|(_, waker)| waker.clone())
    }

    /// Removes and returns all wakers, for the end of what they wait for.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.queue).into_iter().map(|(_, waker)| waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_take_in_the_order_in_which_they_came() {
        let mut waiters = Waiters::default();
        let (mut first, mut second) = (None, None);
        assert!(waiters.is_turn(None));
        waiters.wait(&mut first, Waker::noop());
        waiters.wait(&mut second, Waker::noop());
        waiters.wait(&mut first, Waker::noop());
        assert!(waiters.is_turn(first) && !waiters.is_turn(second) && !waiters.is_turn(None));
        waiters.leave(&mut first);
        assert!(waiters.is_turn(second) && first.is_none());
        assert_eq!(waiters.take_all().count(), 1);
        assert!(waiters.is_turn(None));
    }
}
