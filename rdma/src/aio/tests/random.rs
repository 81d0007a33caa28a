//! Random programs: futures are polled, dropped and completed in any order, and no buffer is lost.

use super::*;
use crate::testing::{Random, run_random};

/// One random program: up to eight requests and receives at a time, fetched by the driver or by a
/// poller.
fn run(random: &mut Random) {
    let mut rig = Rig::new();
    let mut poller = rig.handle.completion_queue().poller();
    let mut futures: Vec<InFlight<Buffer>> = Vec::new();
    let mut completed = 0;
    let pick = |random: &mut Random, futures: &mut Vec<InFlight<Buffer>>| {
        (!futures.is_empty()).then(|| futures.swap_remove(random.below(futures.len())))
    };
    for _ in 0..200 {
        match random.below(9) {
            0 | 1 => {
                let buffer = rig.buffer();
                futures.extend(rig.qp.start(op::send(buffer)));
            }
            2 => {
                let buffer = rig.buffer();
                drop(rig.qp.post_recv(buffer));
            }
            3 if completed < testing::posted(rig.qp.queue_pair().as_raw()).len() => {
                rig.succeed(completed);
                completed += 1;
            }
            4 => drop(rig.turn()),
            5 => assert!(poller.poll().unwrap().is_none()),
            6 => drop(pick(random, &mut futures)),
            7 => {
                if let Some(mut future) = pick(random, &mut futures) {
                    match poll(&mut future, &Task::new().1) {
                        Poll::Ready(finished) => assert!(finished.into_memory().is_ok()),
                        Poll::Pending => futures.push(future),
                    }
                }
            }
            _ => drop(rig.qp.poll_received(&mut Context::from_waker(&Task::new().1))),
        }
    }
    // A drain: everything completes and is taken.
    (completed..testing::posted(rig.qp.queue_pair().as_raw()).len()).for_each(|at| rig.succeed(at));
    rig.turn();
    assert!(poller.poll().unwrap().is_none());
    futures.into_iter().for_each(|future| assert!(ready(future).into_memory().is_ok()));
    while let Poll::Ready(received) = rig.qp.poll_received(&mut Context::from_waker(Waker::noop())) {
        assert!(received.unwrap().take_buffer().is_some());
    }
    assert_eq!((regions(), rig.stale(), rig.qp.abandoned()), (0, 0, 0));
    assert_eq!(rig.qp.queue_pair().send_queue().room(), DEPTH);
}

#[test]
fn random_programs_lose_no_buffer() {
    run_random(if cfg!(miri) { 2 } else { 100 }, run);
}
