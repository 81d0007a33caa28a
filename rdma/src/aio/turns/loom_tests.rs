//! All interleavings of tasks that wait for the one slot of a queue, and of the completion that
//! frees it. Each protocol is modelled once as it is, and once with a bug that it rules out.

use super::*;

use std::sync::Arc;
use std::task::{Context, Wake};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::ring::{Cursor, Results};

/// A task: counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A queue of one slot, which a request occupies.
struct World {
    turns: Mutex<Turns>,
    results: Results<()>,
    slot_is_free: AtomicBool,
    /// Stands for the task that grants turns.
    on_room: Arc<Task>,
}

const SINK: u64 = 0;

impl World {
    fn new() -> loom::sync::Arc<Self> {
        let (turns, results) = (Mutex::new(Turns::default()), Results::new());
        // SAFETY: begin requires one caller at a time: no thread was started yet.
        let ticket = unsafe { results.begin(&mut Cursor::new()) };
        results.abandon(ticket.expect("a sink"));
        let (slot_is_free, on_room) = (AtomicBool::new(false), Arc::default());
        loom::sync::Arc::new(Self { turns, results, slot_is_free, on_room })
    }

    fn add(&self) -> (Arc<Task>, u64) {
        let task = Arc::new(Task::default());
        let turn = self.turns.lock().unwrap().add(Waker::from(Arc::clone(&task)));
        (task, turn)
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
            let world = Self::new();
            let completing = {
                let world = loom::sync::Arc::clone(&world);
                thread::spawn(move || world.complete())
            };
            let (task, turn) = tasks(&world);
            completing.join().unwrap();
            assert_eq!(task.0.load(Ordering::Relaxed), 1, "the task was not woken");
            assert_eq!(world.turns.lock().unwrap().look(turn), Turn::Granted);
        });
    }
}

#[test]
fn a_task_that_waits_for_a_slot_is_granted_it() {
    World::model(|world| {
        let first = world.add();
        world.grant();
        first
    });
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
