//! Tasks that wait: one in its place, or many for the same thing, served in the order in which they
//! came.
//!
//! A waker is other people's code, which may call back or panic: it is cloned, woken and dropped
//! under no lock.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

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

/// Time in which a woken task must be polled, or others take in its place.
///
/// Executors poll a woken task far sooner, unless the machine is overloaded. Then tasks take out of
/// order, and nothing else is wrong.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// A queue of waiting tasks.
///
/// Only the task whose turn it is may take what all wait for. It stays in the queue until it has
/// taken, or gives up: then the next one must be woken if more is there.
///
/// A future that is forgotten, or left unpolled beside others of its task, must not stop the queue:
/// a task that is woken and not polled for [`TURN`] is passed by. It keeps its place, so it is
/// first again as soon as it is polled, and has a whole turn from the next time that it is woken.
/// So a task that is polled in time is never overtaken, and each forgotten one delays the others
/// once.
///
/// Wakers that are no longer needed go to the caller, who drops them under no lock: the drop of a
/// waker may drop a task, and so run any code.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    queue: VecDeque<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    stage: Stage,
    /// Present while the task is not woken.
    waker: Option<Waker>,
}

/// How far a waiting task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits,
    /// It was woken, and must be polled by this time.
    Woken(Instant),
    /// It was not polled in time.
    PassedBy,
}

/// A task's place in a [`Waiters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Waiters {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a task may take: all that came before it, in the queue or outside, are passed by.
    pub(super) fn is_turn(&self, place: Option<Place>) -> bool {
        let is_own = |waiter: &Waiter| place == Some(Place(waiter.id));
        self.queue.iter().find(|waiter| is_own(waiter) || waiter.stage != Stage::PassedBy).is_none_or(is_own)
    }

    /// Whether a task waits that is not passed by.
    pub(super) fn has_turn(&self) -> bool {
        self.queue.iter().any(|waiter| waiter.stage != Stage::PassedBy)
    }

    /// Whether no task waits, but that with this place.
    pub(super) fn is_alone(&self, place: Option<Place>) -> bool {
        self.queue.iter().all(|waiter| place == Some(Place(waiter.id)))
    }

    /// Adds a task at the end, or replaces its waker.
    pub(super) fn wait(&mut self, place: &mut Option<Place>, task: &mut Task<'_>) {
        let known = place.and_then(|Place(id)| self.queue.iter_mut().find(|known| known.id == id));
        if let Some(waiter) = known {
            waiter.stage = Stage::Waits;
            return task.leave(&mut waiter.waker);
        }
        let mut waker = None;
        task.leave(&mut waker);
        if waker.is_some() {
            *place = Some(Place(self.next));
            self.queue.push_back(Waiter { id: self.next, stage: Stage::Waits, waker });
            self.next += 1;
        }
    }

    /// Removes a task that has taken or gives up. Returns its waker.
    #[must_use]
    pub(super) fn leave(&mut self, place: &mut Option<Place>) -> Option<Waker> {
        let Place(id) = place.take()?;
        let at = self.queue.iter().position(|known| known.id == id)?;
        self.queue.remove(at)?.waker
    }

    /// Takes the waker of the task whose turn it is. There is none while a woken task has time to
    /// be polled.
    pub(super) fn take_first(&mut self, now: Instant) -> Option<Waker> {
        self.pass_by(now);
        let first = self.queue.iter_mut().find(|waiter| waiter.stage != Stage::PassedBy)?;
        let waker = first.waker.take()?;
        first.stage = Stage::Woken(now + TURN);
        Some(waker)
    }

    /// Ends the turn of a task that was not polled in time.
    pub(super) fn pass_by(&mut self, now: Instant) {
        // One task at most is woken and has time left.
        for waiter in &mut self.queue {
            match waiter.stage {
                Stage::Woken(by) if by <= now => waiter.stage = Stage::PassedBy,
                Stage::Woken(_) | Stage::Waits => return,
                Stage::PassedBy => {}
            }
        }
    }

    /// The end of the turn of a task that others wait behind: [`pass_by`](Self::pass_by) is due
    /// then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let mut waiting = self.queue.iter().skip_while(|waiter| waiter.stage == Stage::PassedBy);
        let (first, _other) = (waiting.next()?, waiting.next()?);
        if let Stage::Woken(by) = first.stage { Some(by) } else { None }
    }

    /// As [`deadline`](Self::deadline), if others than the tasks of this queue wait behind the
    /// first.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let first = self.queue.iter().find(|waiter| waiter.stage != Stage::PassedBy)?;
        if let Stage::Woken(by) = first.stage { Some(by) } else { None }
    }

    /// Removes and returns all wakers, for the end of what they wait for.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.queue).into_iter().filter_map(|waiter| waiter.waker)
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

    /// Tasks that take capacity and give it back, by the rules of senders and operations.
    struct World {
        waiters: Waiters,
        room: usize,
        tasks: [Member; TASKS],
        /// Tasks that wait, in the order in which they came.
        order: Vec<usize>,
        now: Instant,
        /// Whether a task was not polled in time, so that others may overtake it.
        is_late: bool,
    }

    impl World {
        fn new(room: usize) -> Self {
            let (waiters, tasks) = (Waiters::default(), <[Member; TASKS]>::default());
            Self { waiters, room, tasks, order: Vec::new(), now: Instant::now(), is_late: false }
        }

        /// What follows each change: the first task is woken if capacity is left.
        fn wake_first(&mut self) {
            if self.room > 0 {
                self.waiters.take_first(self.now).into_iter().for_each(Waker::wake);
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
                assert!(self.is_late || self.order[0] == at, "out of order");
                self.order.retain(|waiting| *waiting != at);
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

        /// The driver keeps the time.
        fn pass_time(&mut self) {
            self.is_late |= self.waiters.queue.iter().any(|waiter| matches!(waiter.stage, Stage::Woken(_)));
            self.now += TURN;
            self.waiters.pass_by(self.now);
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
            let mut world = World::new(room);
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

        #[test]
        fn forgotten_tasks_delay_others_once(
            forgotten in prop::collection::vec(any::<bool>(), TASKS),
            steps in prop::collection::vec((0..TASKS, 0..6u8), 0..60),
        ) {
            let mut world = World::new(1);
            for (at, step) in steps {
                match step {
                    0 if !forgotten[at] => world.end(at),
                    1 => world.pass_time(),
                    // A task is forgotten once it waits.
                    _ if world.tasks[at].has_taken || forgotten[at] && world.tasks[at].place.is_some() => {}
                    _ => world.poll(at),
                }
            }
            if let Some(holder) = world.tasks.iter().position(|task| task.has_taken) {
                world.end(holder);
            }
            // Each forgotten task has one turn at most; the others take in theirs.
            for _ in 0..forgotten.len() {
                world.pass_time();
            }
            while let Some(&waiting) = world.order.iter().find(|at| !forgotten[**at]) {
                prop_assert!(world.tasks[waiting].flag.0.load(Ordering::Relaxed), "a task waits for forgotten ones");
                world.poll(waiting);
                prop_assert!(world.tasks[waiting].has_taken);
                world.end(waiting);
            }
            // A new task need not wait at all.
            prop_assert!(world.waiters.is_turn(None));
        }
    }

    #[test]
    fn a_task_that_was_passed_by_is_first_when_it_is_polled() {
        let mut waiters = Waiters::default();
        let (mut first, mut second) = (None, None);
        for place in [&mut first, &mut second] {
            wait(&mut waiters, place, Waker::noop());
        }
        let now = Instant::now();
        assert!(waiters.deadline().is_none(), "nobody was woken");
        assert!(waiters.take_first(now).is_some() && waiters.take_first(now).is_none());
        assert_eq!(waiters.deadline(), Some(now + TURN));
        assert!(waiters.is_turn(first) && !waiters.is_turn(second) && !waiters.is_turn(None));
        assert!(waiters.take_first(now + TURN).is_some(), "the second");
        assert!(waiters.is_turn(first) && waiters.is_turn(second) && !waiters.is_turn(None));
        // It finds no capacity, and waits in its old place.
        wait(&mut waiters, &mut first, Waker::noop());
        assert!(waiters.is_turn(first) && !waiters.is_turn(second));
        assert!(waiters.take_first(now + TURN).is_some() && waiters.take_first(now + TURN).is_none());
        assert_eq!(waiters.deadline(), Some(now + TURN + TURN));
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
