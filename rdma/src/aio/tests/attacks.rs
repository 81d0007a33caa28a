//! User code that does its worst: in wakers, in drops, with leaked futures.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Mutex;

use super::*;

/// A waker that runs a closure.
struct Run<F>(F);

impl<F: Fn() + Send + Sync> Wake for Run<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(run: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Run(run)))
}

#[test]
fn a_waker_may_drop_the_future_that_it_wakes() {
    let mut rig = Rig::new();
    let parked = Arc::new(Mutex::new(None::<InFlight<Buffer>>));
    let mut sent = rig.start();
    let parasite = {
        let parked = Arc::clone(&parked);
        waker(move || drop(parked.lock().unwrap().take()))
    };
    assert!(poll(&mut sent, &parasite).is_pending());
    *parked.lock().unwrap() = Some(sent);
    rig.succeed(0);
    rig.turn();
    assert!(parked.lock().unwrap().is_none());
    assert_eq!(regions(), 0);
}

#[test]
fn a_waker_may_poll_other_futures_and_post() {
    let rig = Arc::new(Mutex::new(Rig::new()));
    let (mut first, second) = {
        let mut rig = rig.lock().unwrap();
        (rig.start(), Mutex::new(Some(rig.start())))
    };
    let seen = Arc::new(AtomicUsize::new(0));
    let busy = {
        let seen = Arc::clone(&seen);
        waker(move || {
            let Some(mut second) = second.lock().unwrap().take() else { return };
            seen.fetch_add(usize::from(poll(&mut second, Waker::noop()).is_pending()), Ordering::Relaxed);
        })
    };
    assert!(poll(&mut first, &busy).is_pending());
    let mut rig = rig.lock().unwrap();
    rig.succeed(0);
    rig.turn();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert!(ready(first).into_memory().is_ok());
    // The waker's clone in the sink is gone, and with it the second future.
    rig.succeed(1);
    rig.turn();
    assert_eq!(regions(), 0);
}

#[test]
fn a_waker_that_panics_takes_no_completion_from_others() {
    let mut rig = Rig::new();
    let (mut first, second) = (rig.start(), rig.start());
    assert!(poll(&mut first, &waker(|| panic!("a waker panics"))).is_pending());
    rig.succeed(0);
    rig.succeed(1);
    assert!(catch_unwind(AssertUnwindSafe(|| rig.turn())).is_err());
    assert!(ready(first).into_memory().is_ok() && ready(second).into_memory().is_ok());
    assert_eq!(regions(), 0);
}

#[test]
fn a_waker_that_panics_in_a_poller_takes_no_completion_from_it() {
    let mut rig = Rig::new();
    let mut other = connect(&rig.pd, &rig.handle);
    let mut poller = rig.handle.completion_queue().poller();
    for round in 0..3 {
        other.post_send(op::send(rig.buffer()).token(round)).unwrap();
        let wr_id = testing::posted(other.as_raw()).last().unwrap().wr_id;
        let mut futures = [rig.start(), rig.start()];
        assert!(poll(&mut futures[0], &waker(|| panic!("a waker panics"))).is_pending());
        // The poller fetches all three together, and delivers the futures' while it does.
        testing::complete(rig.handle.completion_queue().as_raw(), ibv_wc { wr_id, ..ibv_wc::default() });
        let first = testing::posted(rig.qp.queue_pair().as_raw()).len() - 2;
        (first..first + 2).for_each(|at| rig.succeed(at));
        assert!(catch_unwind(AssertUnwindSafe(|| poller.poll().map(|found| found.is_some()))).is_err());
        assert_eq!(poller.poll().unwrap().expect("its own completion").token(), round);
        assert!(poller.poll().unwrap().is_none());
        futures.into_iter().for_each(|sent| assert!(ready(sent).into_memory().is_ok()));
    }
    assert_eq!((rig.stale(), regions()), (0, 0));
}

/// The payload of a panic whose drop panics, too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload of a panic panics");
    }
}

#[test]
#[allow(clippy::mem_forget, reason = "the drop of what was caught would panic")]
fn panics_whose_payloads_panic_take_no_completion_from_others() {
    let mut rig = Rig::new();
    let mut futures = [rig.start(), rig.start(), rig.start()];
    for sent in &mut futures[..2] {
        assert!(poll(sent, &waker(|| panic_any(Bomb))).is_pending());
    }
    (0..3).for_each(|at| rig.succeed(at));
    std::mem::forget(catch_unwind(AssertUnwindSafe(|| rig.turn())).unwrap_err());
    for sent in futures {
        assert!(ready(sent).into_memory().is_ok());
    }
}

#[test]
fn an_ended_queue_pair_keeps_no_task() {
    let mut rig = Rig::new();
    let [(receiver, waiting), (owner, full)] = [Task::new(), Task::new()];
    let _sent: [_; DEPTH as usize] = std::array::from_fn(|_| rig.start());
    assert!(rig.qp.poll_received(&mut Context::from_waker(&waiting)).is_pending());
    assert!(rig.qp.poll_room(&mut Context::from_waker(&full)).is_pending());
    drop((waiting, full));
    let Rig { qp, .. } = rig;
    drop(qp);
    assert_eq!((Arc::strong_count(&receiver), Arc::strong_count(&owner)), (1, 1));
}

#[test]
#[allow(clippy::mem_forget, reason = "this is the attack")]
fn a_leaked_future_leaks_no_slot() {
    let mut rig = Rig::new();
    for at in 0..2 * DEPTH as usize {
        let sent = rig.start();
        rig.succeed(at);
        std::mem::forget(sent);
        rig.turn();
    }
    // The reports wait for their futures; the queue is free.
    assert_eq!(rig.qp.queue_pair().send_queue().room(), DEPTH);
}

#[test]
fn a_duplicate_completion_is_stale() {
    let mut rig = Rig::new();
    let sent = rig.start();
    rig.succeed(0);
    rig.succeed(0);
    rig.turn();
    assert!(ready(sent).into_memory().is_ok());
    assert_eq!(rig.stale(), 1);
}

#[test]
#[should_panic(expected = "after it was ready")]
fn a_ready_future_is_not_polled_again() {
    let mut rig = Rig::new();
    let mut sent = rig.start();
    rig.succeed(0);
    rig.turn();
    let _finished = poll(&mut sent, Waker::noop());
    let _again = poll(&mut sent, Waker::noop());
}
