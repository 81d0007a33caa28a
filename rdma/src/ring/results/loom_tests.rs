//! All interleavings of a task, a completion and the end of the driver. Each protocol is modelled
//! once as it is, and once with a bug that it rules out, which the model must find. Loom also finds
//! any access to a report that does not come after the one before.

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

/// A report that is counted when it is dropped.
struct Counted(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sink with a request in flight, and a slot that it occupies.
struct World {
    results: Results<Counted>,
    slot_is_free: AtomicBool,
    dropped: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

const SINK: u64 = 0;

type Future<'a> = Option<Ticket<'a, Counted>>;

impl World {
    fn new() -> Arc<Self> {
        let dropped = std::sync::Arc::default();
        Arc::new(Self { results: Results::new(), slot_is_free: AtomicBool::new(false), dropped })
    }

    fn begin(&self) -> Future<'_> {
        // SAFETY: begin requires one caller at a time: the models call it before the threads start
        // and after they have ended.
        unsafe { self.results.begin(&mut Cursor::new()) }
    }

    fn start(world: &Arc<Self>, run: fn(&Self)) -> thread::JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || run(&world))
    }

    /// Runs a model of one task, which has the future of a request, and one other thread. If its
    /// first poll is not ready, the task must have been woken when the other thread is done.
    fn model(other: fn(&Self), poll: fn(&Self, &mut Future<'_>, &Context<'_>) -> bool) {
        loom::model(move || {
            let world = Self::new();
            let mut future = world.begin();
            let thread = Self::start(&world, other);
            let task = std::sync::Arc::new(Task::default());
            let waker = Waker::from(std::sync::Arc::clone(&task));
            let cx = Context::from_waker(&waker);
            let is_ready = poll(&world, &mut future, &cx);
            thread.join().unwrap();
            if !is_ready {
                assert_eq!(task.0.load(Ordering::Relaxed), 1, "the task was not woken, or twice");
                assert!(poll(&world, &mut future, &cx), "the task was woken for nothing");
            }
        });
    }

    fn report(&self) -> Counted {
        Counted(std::sync::Arc::clone(&self.dropped))
    }

    fn publish(&self) {
        // SAFETY: publish requires a sink that began a request, which it is called for once: each
        // model calls this once.
        let after = unsafe { self.results.publish(SINK, || self.report()) };
        after.into_iter().flat_map(|after| after.wakers).flatten().for_each(Waker::wake);
    }

    /// As `Claimed` does when a completion arrives.
    fn complete(&self) {
        self.slot_is_free.store(true, Ordering::Release);
        self.publish();
    }

    fn poll(&self, future: &mut Future<'_>, cx: &Context<'_>) -> bool {
        self.results.poll(future, cx).is_ready()
    }

    fn poll_first(&self, future: &mut Future<'_>, cx: &Context<'_>) -> bool {
        future.as_ref().is_some_and(Ticket::is_done) || self.results.wait_for_first(future.as_ref(), cx) != Some(false)
    }

    fn poll_room(&self, _: &mut Future<'_>, cx: &Context<'_>) -> bool {
        self.results.poll_owner(cx, Some(SINK), || self.slot_is_free.load(Ordering::Acquire)).is_ready()
    }

    fn poll_end(&self, _: &mut Future<'_>, cx: &Context<'_>) -> bool {
        self.results.poll_owner(cx, None, || self.slot_is_free.load(Ordering::Acquire)).is_ready()
    }

    /// Runs a model of a future that ends while its completion arrives. The report is dropped once,
    /// and the sink can be used again.
    fn model_end(end: fn(&Self, Future<'_>)) {
        loom::model(move || {
            let world = Self::new();
            let future = world.begin();
            let thread = Self::start(&world, Self::publish);
            end(&world, future);
            thread.join().unwrap();
            assert_eq!(world.dropped.load(Ordering::Relaxed), 1, "the report is lost");
            assert!(world.begin().is_some_and(|again| u64::from(again.index()) == SINK), "the sink is lost");
        });
    }
}

#[test]
fn a_task_finds_its_report_or_is_woken() {
    World::model(World::complete, World::poll);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_completion_that_looks_for_wakers_before_it_publishes_finds_none() {
    fn complete(world: &World) {
        let wakers = world.results.take_wakers(SINK);
        // SAFETY: publish requires a sink that began a request, which it is called for once.
        drop(unsafe { world.results.publish(SINK, || world.report()) });
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
    World::model(complete, World::poll);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_task_that_watches_before_it_leaves_its_waker_is_not_woken() {
    fn poll(world: &World, future: &mut Future<'_>, cx: &Context<'_>) -> bool {
        let Some(ticket) = future else { return true };
        let is_done = ticket.is_done() || !ticket.watch();
        is_done || !world.results.leave(cx, |state| state.wakers.first_mut())
    }
    World::model(World::complete, poll);
}

#[test]
fn a_received_message_is_found_or_wakes_its_task() {
    World::model(World::complete, World::poll_first);
}

#[test]
fn a_report_is_disposed_of_once() {
    World::model_end(|world, future| future.into_iter().for_each(|ticket| world.results.abandon(ticket)));
}

#[test]
fn a_report_is_taken_once() {
    World::model_end(|world, mut future| {
        let task = Waker::from(std::sync::Arc::new(Task::default()));
        drop(world.results.poll(&mut future, &Context::from_waker(&task)));
    });
}

#[test]
#[should_panic(expected = "the report is lost")]
fn an_abandon_in_two_steps_loses_a_report() {
    World::model_end(|_, future| future.into_iter().for_each(Ticket::abandon_in_two_steps));
}

#[test]
fn a_task_that_waits_for_room_is_woken() {
    World::model(World::complete, World::poll_room);
    World::model(World::complete, World::poll_end);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_slot_that_is_freed_after_its_report_wakes_nobody() {
    fn complete(world: &World) {
        world.publish();
        world.slot_is_free.store(true, Ordering::Release);
    }
    World::model(complete, World::poll_room);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_task_that_looks_for_room_only_before_it_watches_is_not_woken() {
    fn poll(world: &World, future: &mut Future<'_>, cx: &Context<'_>) -> bool {
        if world.slot_is_free.load(Ordering::Acquire) {
            return true;
        }
        world.results.leave(cx, |state| Some(&mut state.owner));
        future.iter().for_each(|ticket| _ = ticket.watch());
        false
    }
    World::model(World::complete, poll);
}

#[test]
fn the_end_of_the_driver_wakes_its_tasks() {
    World::model(|world| world.results.undrive(), World::poll);
    World::model(|world| world.results.undrive(), World::poll_first);
    World::model(|world| world.results.undrive(), World::poll_room);
}

#[test]
#[should_panic(expected = "the task was not woken")]
fn a_driver_that_wakes_before_it_says_that_it_is_gone_wakes_too_early() {
    fn undrive(world: &World) {
        world.results.take_wakers(SINK).into_iter().flatten().for_each(Waker::wake);
        world.results.lock().is_driven = false;
    }
    World::model(undrive, World::poll);
}
