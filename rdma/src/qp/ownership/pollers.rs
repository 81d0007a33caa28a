//! Several pollers, scopes and threads on one completion queue: a completion that one of them
//! fetches is not hidden from the others.

use std::thread;
use std::time::Duration;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Three requests with their completions: tokens 1, 2 and 3.
fn three() -> Rig {
    let mut rig = Rig::new();
    for token in 1..=3 {
        rig.send(token, true);
    }
    for at in 0..3 {
        rig.succeed(at);
    }
    rig
}

fn token(poller: &mut Poller) -> Option<u64> {
    let mut completion = poller.poll().unwrap()?;
    assert!(completion.take_buffer().is_some());
    Some(completion.token())
}

#[test]
fn what_a_poller_has_fetched_comes_to_a_second_one_too() {
    let mut rig = three();
    assert_eq!(token(&mut rig.poller), Some(1));
    let mut second = rig.cq.poller();
    assert_eq!((token(&mut second), token(&mut second), token(&mut second)), (Some(2), Some(3), None));
    assert_eq!(token(&mut rig.poller), None);
    assert_eq!((rig.cq.stale_completions(), regions()), (0, 0));
}

#[test]
fn a_poller_that_polls_alone_beside_an_idle_one_gets_all_in_order() {
    let mut rig = three();
    let mut idle = None;
    for expected in 1..=3 {
        assert_eq!(token(&mut rig.poller), Some(expected));
        idle.get_or_insert_with(|| rig.cq.poller());
    }
    assert_eq!((token(&mut rig.poller), idle.as_mut().and_then(token)), (None, None));
    assert_eq!(rig.cq.stale_completions(), 0);
    // The poller is alone again, so it fetches several at a time.
    drop(idle);
    let polls = || testing::calls().iter().filter(|&&call| call == "poll_cq").count();
    for token in 4..=6 {
        rig.send(token, true);
        rig.succeed(rig.posted().len() - 1);
    }
    let before = polls();
    for expected in 4..=6 {
        assert_eq!(token(&mut rig.poller), Some(expected));
    }
    assert_eq!(polls() - before, 1);
}

#[test]
fn what_a_dropped_poller_has_fetched_comes_to_the_next() {
    let mut rig = three();
    assert_eq!(token(&mut rig.poller), Some(1));
    rig.poller = rig.cq.poller();
    assert_eq!((token(&mut rig.poller), token(&mut rig.poller), token(&mut rig.poller)), (Some(2), Some(3), None));
    assert_eq!(rig.cq.stale_completions(), 0);
}

#[test]
fn a_scope_ends_although_another_poller_fetches_inside_it() {
    let mut rig = Rig::new();
    rig.send(1, true);
    let (source, cq) = (rig.buffer(4), rig.cq.clone());
    let mut other = cq.poller();
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, LONG, |scope| {
        for _ in 0..2 {
            scope.post_send(op::send(source.lend(..))).unwrap();
        }
        for posted in testing::posted(scope.queue_pair().as_raw()) {
            testing::complete(cq.as_raw(), wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
        }
        // The poller takes the completion before those of the scope, and is not used again.
        assert_eq!(token(&mut other), Some(1));
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn a_batch_delivers_what_belongs_to_scopes_at_once() {
    let mut rig = Rig::new();
    rig.send(1, true);
    let (source, cq) = (rig.buffer(4), rig.cq.clone());
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, LONG, |scope| {
        scope.post_send(op::send(source.lend(..))).unwrap();
        // A completion of the scope's request is reported twice.
        let posted = testing::posted(scope.queue_pair().as_raw());
        for at in [1, 0, 1] {
            testing::complete(cq.as_raw(), wc(posted[at].wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
        }
    });
    assert_eq!(result, Ok(()));
    assert_eq!((token(&mut rig.poller), token(&mut rig.poller)), (Some(1), None));
    assert_eq!(rig.cq.stale_completions(), 1);
}

#[test]
fn a_thread_that_sleeps_gets_what_a_scope_fetched() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(64).channel(&channel).build().unwrap();
    let mut rig = Rig { qp: Rig::connect(&pd, &cq), poller: cq.poller(), pd, cq };
    rig.send(1, true);
    let (source, cq) = (rig.buffer(4), rig.cq.clone());
    thread::scope(|threads| {
        let mut sleeper = cq.poller();
        let slept = threads.spawn(move || {
            let found = sleeper.wait(Some(LONG)).unwrap().map(|completion| completion.token());
            (found, sleeper)
        });
        let Rig { qp, poller, .. } = &mut rig;
        // Give the poller time to fall asleep.
        thread::sleep(Duration::from_millis(30));
        let result = qp.scope(poller, LONG, |scope| {
            scope.post_send(op::send(source.lend(..))).unwrap();
            let posted = testing::posted(scope.queue_pair().as_raw());
            // No event reports the completion: only the scope can wake the sleeping poller.
            testing::disarm(cq.as_raw());
            for at in [0, 1] {
                testing::complete(cq.as_raw(), wc(posted[at].wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
            }
        });
        assert_eq!(result, Ok(()));
        assert_eq!(slept.join().unwrap().0, Some(1));
    });
}

#[test]
fn one_event_wakes_as_many_sleepers_as_there_are_completions() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(64).channel(&channel).build().unwrap();
    let mut rig = Rig { qp: Rig::connect(&pd, &cq), poller: cq.poller(), pd, cq };
    thread::scope(|threads| {
        let mut sleepers = Vec::new();
        for _ in 0..3 {
            let mut poller = rig.cq.poller();
            sleepers.push(threads.spawn(move || {
                let found = poller.wait(Some(LONG)).unwrap().map(|completion| completion.token());
                (found, poller)
            }));
        }
        thread::sleep(Duration::from_millis(30));
        for token in 1..=3 {
            rig.send(token, true);
            rig.succeed(rig.posted().len() - 1);
        }
        let mut found: Vec<_> = sleepers.into_iter().map(|sleeper| sleeper.join().unwrap().0).collect();
        found.sort_unstable();
        assert_eq!(found, [Some(1), Some(2), Some(3)]);
    });
}
