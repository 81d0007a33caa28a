//! Tasks that wait: one in its place, or many for the same thing, served in the order in which they
//! came.
//!
//! A waker is other people's code, which may call back or panic: it is cloned, woken and dropped
//! under no lock.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

/// A task that is polled, and leaves its waker behind a lock.
pub(super) struct Task<'a> {
    waker: &'a Waker,
    clone: Option<Waker>,
    /// The waker that was there before.
    replaced: Option<Waker>,
    needs_clone: bool,
}

impl<'a> Task<'a> {
    /// Polls with a clone of the waker if the task is likely to wait; otherwise without, and once
    /// more if the task has to wait. `poll` takes and releases the lock.
    pub(super) fn poll<R>(
        waker: &'a Waker,
        is_likely_to_wait: bool,
        mut poll: impl FnMut(&mut Self) -> Poll<R>,
    ) -> Poll<R> {
        let clone = is_likely_to_wait.then(|| waker.clone());
        let mut task = Self { waker, clone, replaced: None, needs_clone: false };
        loop {
            let polled = poll(&mut task);
            if polled.is_ready() || !task.needs_clone {
                return polled;
            }
            task.needs_clone = false;
            task.clone = Some(waker.clone());
        }
    }

    /// Leaves the waker in a place, unless a waker of the same task is there. Without a clone to
    /// leave, leaves the place as it is, and makes the caller poll again.
    pub(super) fn leave(&mut self, place: &mut Option<Waker>) {
        if place.as_ref().is_some_and(|known| known.will_wake(self.waker)) {
            return;
        }
        match self.clone.take() {
            Some(clone) => self.replaced = place.replace(clone),
            None => self.needs_clone = true,
        }
    }
}

/// A queue of waiting tasks.
///
/// Only the first task may take what all wait for. The task stays in the queue until it has taken,
/// or gives up: then the next one is first and must be woken if more is there.
///
/// Wakers that are no longer needed go to the caller, who drops them under no lock: the drop of a
/// waker may drop a task, and so run any code.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The places of the tasks, and the wakers of those that are not woken yet.
    queue: VecDeque<(u64, Option<Waker>)>,
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
    pub(super) fn wait(&mut self, place: &mut Option<Place>, task: &mut Task<'_>) {
        let known = place.and_then(|Place(id)| self.queue.iter_mut().find(|(known, _)| *known == id));
        if let Some((_, waker)) = known {
            return task.leave(waker);
        }
        let mut waker = None;
        task.leave(&mut waker);
        if waker.is_some() {
            *place = Some(Place(self.next));
            self.queue.push_back((self.next, waker));
            self.next += 1;
        }
    }

    /// Removes a task that has taken or gives up. Returns its waker.
    #[must_use]
    pub(super) fn leave(&mut self, place: &mut Option<Place>) -> Option<Waker> {
        let Place(id) = place.take()?;
        let at = self.queue.iter().position(|(known, _)| *known == id)?;
        self.queue.remove(at)?.1
    }

    /// Takes the waker of the first task. There is none once the task is woken, until it is polled.
    pub(super) fn take_first(&mut self) -> Option<Waker> {
        self.queue.front_mut().and_then(|(_, waker)| waker.take())
    }

    /// Removes and returns all wakers, for the end of what they wait for.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.queue).into_iter().filter_map(|(_, waker)| waker)
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
    struct Member {
        flag: Arc<Flag>,
        place: Option<Place>,
        has_taken: bool,
    }

    fn wait(waiters: &mut Waiters, place: &mut Option<Place>, waker: &Waker) {
        let polled = Task::poll(waker, false, |task| {
            waiters.wait(place, task);
            Poll::<()>::Pending
        });
        assert!(polled.is_pending() && place.is_some());
    }

    /// Tasks that take room and give it back, by the rules of senders and operations.
    struct World {
        waiters: Waiters,
        room: usize,
        tasks: [Member; TASKS],
        /// Tasks that wait, in the order in which they came.
        order: Vec<usize>,
    }

    impl World {
        /// What follows each change: the first task is woken if there is room.
        fn wake_first(&mut self) {
            if self.room > 0 {
                self.waiters.take_first().into_iter().for_each(Waker::wake);
            }
        }

        fn poll(&mut self, at: usize) {
            let task = &mut self.tasks[at];
            task.flag.0.store(false, Ordering::Relaxed);
            if self.room == 0 || !self.waiters.is_turn(task.place) {
                if task.place.is_none() {
                    self.order.push(at);
                }
                return wait(&mut self.waiters, &mut task.place, &Arc::clone(&task.flag).into());
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
            wait(&mut waiters, place, Waker::noop());
        }
        let again = first;
        wait(&mut waiters, &mut first, Waker::noop());
        assert_eq!(first, again, "a place is kept");
        assert!(waiters.is_turn(first) && !waiters.is_turn(second) && !waiters.is_turn(None));
        assert!(waiters.leave(&mut first).is_some() && waiters.leave(&mut first).is_none());
        assert!(waiters.is_turn(second) && first.is_none());
        assert_eq!(waiters.take_all().count(), 1);
        assert!(waiters.is_turn(None));
    }
}
