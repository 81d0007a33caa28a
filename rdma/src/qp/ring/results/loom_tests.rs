//! All interleavings of a task, a completion and the end of the driver. Each protocol is modelled
//! once as it is, and once with a bug that it rules out, which the model must find.

use super::*;

use std::task::Wake;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

/// A task: counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sink with a request in flight, and a slot that it occupies.
struct World {
    results: Results<usize>,
    slot_is_free: AtomicBool,
}

const SINK: u32 = 0;

impl World {
    fn new() -> Arc<Self> {
        let world = Self { results: Results::new(), slot_is_free: AtomicBool::new(false) };
        assert_eq!(world.results.refill(&mut Vec::new()), SINK);
        Arc::new(world)
    }

    /// Runs a model of one task and one other thread. Without a result from its first poll, the
    /// task must have been woken when the other thread is done.
    fn model<T: 'static>(other: fn(&Self), poll: fn(&Self, &Context<'_>) -> Poll<T>) {
        loom::model(move || {
            let world = Self::new();
            let thread = {
                let world = Arc::clone(&world);
                thread::spawn(move || other(&world))
            };
            let task = std::sync::Arc::new(Task::default());
            let waker = Waker::from(std::sync::Arc::clone(&task));
            let cx = Context::from_waker(&waker);
            let first = poll(&world, &cx);
            thread.join().unwrap();
            if first.is_pending() {
                assert_eq!(task.0.load(Ordering::Relaxed), 1, "the task was not woken, or twice");
                assert!(poll(&world, &cx).is_ready(), "the task was woken for nothing");
            }
        });
    }

    /// As `Claimed` does when a completion arrives.
    fn complete(&self) {
        self.slot_is_free.store(true, Ordering::Release);
        run(self.results.publish(SINK.into(), 7));
    }

    fn poll_sink(&self, cx: &Context<'_>) -> Poll<Option<usize>> {
        self.results.poll(SINK, cx)
    }

    fn poll_room(&self, cx: &Context<'_>) -> Poll<bool> {
        self.results.poll_owner(cx, || self.slot_is_free.load(Ordering::Acquire))
    }

    /// The number of reports that were given up, by the task that abandons the request and by the
    /// completion.
    fn model_abandon(abandon: fn(&Self) -> Option<usize>) {
        loom::model(move || {
            let world = Self::new();
            let thread = {
                let world = Arc::clone(&world);
                thread::spawn(move || run(world.results.publish(SINK.into(), 7)))
            };
            let given_up = usize::from(abandon(&world).is_some()) + thread.join().unwrap();
            assert_eq!(given_up, 1, "the report is lost, or disposed of twice");
            assert_eq!(world.results.lock().free, [SINK]);
        });
    }
}

/// Runs the user code of a completion. Returns the number of reports given up.
fn run(after: After<usize>) -> usize {
    after.wakers.into_iter().flatten().for_each(Waker::wake);
    after.given_up.into_iter().count()
}

#[test]
fn a_task_finds_its_report_or_is_woken() {
    World::model(World::complete, World::poll_sink);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_waker_that_is_taken_before_the_report_is_published_is_lost() {
    fn complete(world: &World) {
        let waker = match &mut world.results.lock().sinks[0] {
            Sink::Pending(waker) => waker.take(),
            _ => None,
        };
        let mut state = world.results.lock();
        state.sinks[0] = Sink::Done(7);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
    World::model(complete, World::poll_sink);
}

#[test]
fn a_received_message_is_found_or_wakes_its_task() {
    World::model(
        |world| {
            run(world.results.publish(RECEIVE, 7));
        },
        |world, cx| world.results.poll_received(cx),
    );
}

#[test]
fn a_report_is_disposed_of_once() {
    World::model_abandon(|world| world.results.abandon(SINK));
}

#[test]
#[should_panic(expected = "the report is lost")]
fn an_abandon_in_two_steps_loses_a_report() {
    World::model_abandon(|world| {
        let is_done = matches!(world.results.lock().sinks[0], Sink::Done(_));
        if is_done {
            return world.results.abandon(SINK);
        }
        world.results.lock().sinks[0] = Sink::Abandoned;
        None
    });
}

#[test]
fn a_task_that_waits_for_room_is_woken() {
    World::model(World::complete, World::poll_room);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_slot_that_is_freed_after_its_report_wakes_nobody() {
    fn complete(world: &World) {
        run(world.results.publish(SINK.into(), 7));
        world.slot_is_free.store(true, Ordering::Release);
    }
    World::model(complete, World::poll_room);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_task_that_looks_for_room_only_before_it_leaves_its_waker_is_not_woken() {
    fn poll(world: &World, cx: &Context<'_>) -> Poll<bool> {
        if world.slot_is_free.load(Ordering::Acquire) {
            return Poll::Ready(true);
        }
        world.results.lock().owner = Some(cx.waker().clone());
        Poll::Pending
    }
    World::model(World::complete, poll);
}

#[test]
fn the_end_of_the_driver_wakes_its_tasks() {
    World::model(|world| world.results.undrive(), World::poll_sink);
    World::model(|world| world.results.undrive(), World::poll_room);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_driver_that_wakes_before_it_says_that_it_is_gone_wakes_too_early() {
    fn undrive(world: &World) {
        let waker = match &mut world.results.lock().sinks[0] {
            Sink::Pending(waker) => waker.take(),
            _ => None,
        };
        waker.into_iter().for_each(Waker::wake);
        world.results.lock().is_driven = false;
    }
    World::model(undrive, World::poll_sink);
}
