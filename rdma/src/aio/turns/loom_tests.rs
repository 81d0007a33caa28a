//! All interleavings of tasks that wait for the one slot of a queue, of the completion that frees
//! it, and of the task that has it. Each protocol is modelled once as it is, and once with a bug
//! that it rules out.

use super::*;

use std::sync::Arc;
use std::task::{Context, Wake};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::ring::{Cursor, Results, Ticket};

/// A task: counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A queue of one slot, which is free or occupied by a request.
struct World {
    turns: Mutex<Turns>,
    results: Results<()>,
    slot_is_free: AtomicBool,
    /// Stands for the task that grants turns.
    on_room: Arc<Task>,
}

/// The sink of the one request of each model.
const SINK: u64 = 0;

impl World {
    /// A queue whose slot is free, and reserved.
    fn reserved() -> loom::sync::Arc<Self> {
        let (mut turns, results) = (Turns::default(), Results::new());
        turns.reserve();
        let (slot_is_free, on_room) = (AtomicBool::new(true), Arc::default());
        loom::sync::Arc::new(Self { turns: Mutex::new(turns), results, slot_is_free, on_room })
    }

    /// A queue whose slot a request occupies, and that request.
    fn occupied(world: &loom::sync::Arc<Self>) -> Ticket<'_, ()> {
        let ticket = world.begin();
        world.slot_is_free.store(false, Ordering::Relaxed);
        world.turns.lock().unwrap().release();
        ticket
    }

    fn begin(&self) -> Ticket<'_, ()> {
        // SAFETY: begin requires one caller at a time, with the only cursor in use: each model has
        // one request, which begins once.
        unsafe { self.results.begin(&mut Cursor::new()) }.expect("a sink")
    }

    fn add(&self) -> (Arc<Task>, u64) {
        let task = Arc::new(Task::default());
        let turn = self.turns.lock().unwrap().add(Waker::from(Arc::clone(&task)));
        (task, turn)
    }

    /// A task that waits for the slot.
    fn wait(&self) -> (Arc<Task>, u64) {
        let waiting = self.add();
        self.grant();
        waiting
    }

    fn grant(&self) {
        let on_room = Waker::from(Arc::clone(&self.on_room));
        let is_free = || self.slot_is_free.load(Ordering::Acquire);
        loop {
            let granted = self.turns.lock().unwrap().grant(|reserved| match reserved {
                0 => self.results.poll_owner(&Context::from_waker(&on_room), Some(SINK), is_free),
                _ => Poll::Pending,
            });
            let Some(task) = granted else { break };
            task.wake();
        }
    }

    fn leave(&self, turn: u64) {
        drop(self.turns.lock().unwrap().leave(turn));
        self.grant();
    }

    /// As the drop of a reserved slot does.
    fn give_up(&self) {
        self.release();
        self.grant();
    }

    fn release(&self) {
        self.turns.lock().unwrap().release();
    }

    /// Posts a request in the reserved slot, as `start` does under the lock. Returns whether tasks
    /// wait.
    fn post(&self) -> bool {
        let mut turns = self.turns.lock().unwrap();
        self.results.abandon(self.begin());
        self.slot_is_free.store(false, Ordering::Relaxed);
        turns.release();
        !turns.is_empty()
    }

    /// As a completion does: the waker of the results' own task grants turns.
    fn complete(&self) {
        self.slot_is_free.store(true, Ordering::Release);
        // SAFETY: publish requires a sink that began a request, which it is called for once: each
        // model calls this once.
        let after = unsafe { self.results.publish(SINK, || ()) };
        after.into_iter().flat_map(|after| after.wakers).flatten().for_each(Waker::wake);
        if self.on_room.0.load(Ordering::Acquire) > 0 {
            self.grant();
        }
    }

    /// Runs a model of some tasks and of the completion. The turn that `tasks` returns must have
    /// been granted, and its task woken.
    fn model(tasks: fn(&Self) -> (Arc<Task>, u64)) {
        loom::model(move || {
            let world = Self::reserved();
            world.results.abandon(Self::occupied(&world));
            let completing = {
                let world = loom::sync::Arc::clone(&world);
                thread::spawn(move || world.complete())
            };
            let (task, turn) = tasks(&world);
            completing.join().unwrap();
            world.assert_granted(&task, turn);
        });
    }

    /// Runs a model of the task that has the slot, and of one that waits for it.
    fn model_holder(holder: fn(&Self)) {
        loom::model(move || {
            let world = Self::reserved();
            let holding = {
                let world = loom::sync::Arc::clone(&world);
                thread::spawn(move || holder(&world))
            };
            let (task, turn) = world.wait();
            holding.join().unwrap();
            world.assert_granted(&task, turn);
        });
    }

    /// Runs a model of a request in flight whose future ends while its completion comes, and of a
    /// task that waits for its slot.
    fn model_future(end: fn(&Self, Ticket<'_, ()>)) {
        loom::model(move || {
            let world = Self::reserved();
            let future = Self::occupied(&world);
            let completing = {
                let world = loom::sync::Arc::clone(&world);
                thread::spawn(move || world.complete())
            };
            let (task, turn) = world.wait();
            end(&world, future);
            completing.join().unwrap();
            world.assert_granted(&task, turn);
        });
    }

    fn assert_granted(&self, task: &Task, turn: u64) {
        assert_eq!(task.0.load(Ordering::Relaxed), 1, "the task was not woken");
        let turns = self.turns.lock().unwrap();
        assert_eq!((turns.look(turn), turns.reserved()), (Turn::Granted, 1));
    }
}

#[test]
fn a_task_that_waits_for_a_slot_is_granted_it() {
    World::model(World::wait);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_task_that_adds_its_turn_and_does_not_grant_waits_for_ever() {
    World::model(World::add);
}

#[test]
fn a_task_that_gives_its_turn_up_passes_it_on() {
    World::model(|world| {
        let ((_, first), second) = (world.add(), world.add());
        world.grant();
        world.leave(first);
        second
    });
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_task_that_gives_its_turn_up_and_does_not_grant_keeps_the_slot() {
    World::model(|world| {
        let ((_, first), second) = (world.add(), world.add());
        world.grant();
        drop(world.turns.lock().unwrap().leave(first));
        second
    });
}

#[test]
fn a_reserved_slot_that_is_dropped_goes_to_the_task_that_waits() {
    World::model_holder(World::give_up);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_reserved_slot_that_is_dropped_without_a_grant_is_nobodys() {
    World::model_holder(World::release);
}

#[test]
fn a_task_that_waits_for_a_reserved_slot_is_granted_it_after_the_request_in_it() {
    World::model_holder(|world| {
        if world.post() {
            world.grant();
        }
        world.complete();
    });
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_request_in_a_reserved_slot_that_grants_no_turn_wakes_nobody_when_it_ends() {
    World::model_holder(|world| {
        world.post();
        world.complete();
    });
}

#[test]
fn a_future_that_is_dropped_in_flight_leaves_its_slot_to_the_task_that_waits() {
    World::model_future(|world, future| world.results.abandon(future));
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_future_that_takes_the_queues_task_with_it_leaves_the_slot_to_nobody() {
    World::model_future(|world, future| {
        world.results.abandon(future);
        world.results.forget_tasks();
    });
}
