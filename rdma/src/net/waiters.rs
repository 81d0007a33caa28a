//! Tasks that wait for the same thing, served in the order in which they came.

use std::collections::VecDeque;
use std::task::Waker;

/// A queue of waiting tasks.
///
/// Only the first task may take what all wait for. The task stays in the queue until it has taken,
/// or gives up: then the next one is first and must be woken if more is there.
///
/// Wakers that are no longer needed go to the caller, who drops them under no lock: the drop of a
/// waker may drop a task, and so run any code.
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

    /// Adds a task at the end, or replaces its waker. Returns the one before.
    #[must_use]
    pub(super) fn wait(&mut self, place: &mut Option<Place>, waker: &Waker) -> Option<Waker> {
        let known = place.and_then(|Place(id)| self.queue.iter_mut().find(|(known, _)| *known == id));
        if let Some((_, known)) = known {
            return replace_waker(known, waker);
        }
        *place = Some(Place(self.next));
        self.queue.push_back((self.next, waker.clone()));
        self.next += 1;
        None
    }

    /// Removes a task that has taken or gives up. Returns its waker.
    #[must_use]
    pub(super) fn leave(&mut self, place: &mut Option<Place>) -> Option<Waker> {
        let Place(id) = place.take()?;
        let at = self.queue.iter().position(|(known, _)| *known == id)?;
        self.queue.remove(at).map(|(_, waker)| waker)
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

/// Replaces the waker of a task. Returns the one before, unless it wakes the same task.
pub(super) fn replace_waker(known: &mut Waker, waker: &Waker) -> Option<Waker> {
    (!known.will_wake(waker)).then(|| std::mem::replace(known, waker.clone()))
}

/// Leaves the waker of a task. Returns the one before.
pub(super) fn leave_waker(place: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match place {
        Some(known) => replace_waker(known, waker),
        None => place.replace(waker.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    const TASKS: usize = 5;

    /// A waker that notes whether its task must be polled.
    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct Task {
        flag: Arc<Flag>,
        place: Option<Place>,
        has_taken: bool,
    }

    /// Tasks that take room and give it back, by the rules of senders and operations.
    struct World {
        waiters: Waiters,
        room: usize,
        tasks: [Task; TASKS],
        /// Tasks that wait, in the order in which they came.
        order: Vec<usize>,
    }

    impl World {
        /// What follows each change: the first task is woken if there is room.
        fn wake_first(&self) {
            if self.room > 0 {
                self.waiters.first().into_iter().for_each(Waker::wake);
            }
        }

        fn poll(&mut self, at: usize) {
            let task = &mut self.tasks[at];
            task.flag.0.store(false, Ordering::Relaxed);
            if self.room == 0 || !self.waiters.is_turn(task.place) {
                if task.place.is_none() {
                    self.order.push(at);
                }
                return drop(self.waiters.wait(&mut task.place, &Arc::clone(&task.flag).into()));
            }
            if task.place.is_some() {
                assert_eq!(self.order.remove(0), at, "out of order");
            }
            drop(self.waiters.leave(&mut task.place));
            task.has_taken = true;
            self.room -= 1;
            self.wake_first();
        }

        /// The task gives back what it has taken, or gives up.
        fn end(&mut self, at: usize) {
            let task = &mut self.tasks[at];
            self.room += usize::from(std::mem::take(&mut task.has_taken));
            drop(self.waiters.leave(&mut task.place));
            self.order.retain(|waiting| *waiting != at);
            self.wake_first();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]
        #[test]
        fn no_task_waits_while_there_is_room(
            room in 1..3usize,
            steps in prop::collection::vec((0..TASKS, any::<bool>()), 0..60),
        ) {
            let mut world = World { waiters: Waiters::default(), room, tasks: Default::default(), order: Vec::new() };
            for (at, ends) in steps {
                match ends {
                    true => world.end(at),
                    false if !world.tasks[at].has_taken => world.poll(at),
                    false => {}
                }
            }
            // Only tasks that were woken are polled from now on.
            while let Some(&waiting) = world.order.first() {
                if let Some(holder) = world.tasks.iter().position(|task| task.has_taken) {
                    world.end(holder);
                }
                prop_assert!(world.tasks[waiting].flag.0.load(Ordering::Relaxed), "a lost wake-up");
                world.poll(waiting);
            }
        }
    }

    #[test]
    fn tasks_take_in_the_order_in_which_they_came() {
        let mut waiters = Waiters::default();
        let (mut first, mut second) = (None, None);
        assert!(waiters.is_turn(None));
        for place in [&mut first, &mut second] {
            assert!(waiters.wait(place, Waker::noop()).is_none());
        }
        let again = first;
        drop(waiters.wait(&mut first, Waker::noop()));
        assert_eq!(first, again, "a place is kept");
        assert!(waiters.is_turn(first) && !waiters.is_turn(second) && !waiters.is_turn(None));
        assert!(waiters.leave(&mut first).is_some() && waiters.leave(&mut first).is_none());
        assert!(waiters.is_turn(second) && first.is_none());
        assert_eq!(waiters.take_all().count(), 1);
        assert!(waiters.is_turn(None));
    }
}
