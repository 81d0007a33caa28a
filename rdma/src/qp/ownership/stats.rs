//! What queue pairs and completion queues count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::ErrorKind;
use crate::testing::{BadWr, fail_post};

#[test]
fn a_send_queue_counts_what_it_posts_and_what_it_refuses() {
    let mut rig = Rig::new();
    let depth = rig.qp.send_queue().depth();
    for token in 0..depth.into() {
        rig.qp
            .post_send(op::write([rig.pd.allocate(3).unwrap(), rig.pd.allocate(4).unwrap()], remote()).token(token))
            .unwrap();
    }
    let full = rig.qp.post_send(op::write(rig.buffer(5), remote())).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QueueFull);
    let long = rig.qp.post_send(op::write(rig.buffer(65), remote())).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::OutOfBounds);
    let stats = rig.qp.stats().send;
    assert_eq!((stats.posted, stats.posted_bytes), (depth.into(), u64::from(depth) * 7));
    assert_eq!((stats.refused, stats.refused_full, stats.in_flight), (2, 1, depth));

    for at in 0..depth as usize {
        rig.succeed(at);
        assert_eq!(rig.next(), Some((at as u64, 2, vec![])));
    }
    // Past the end of the ring.
    rig.send(0, true);
    let stats = rig.qp.stats().send;
    assert_eq!(
        (stats.posted, stats.posted_bytes, stats.in_flight),
        (u64::from(depth) + 1, u64::from(depth) * 7 + 16, 1)
    );
    assert_eq!(rig.qp.stats().recv, RecvStats::default());
}

#[test]
#[allow(clippy::mem_forget, reason = "safe code may do that")]
fn a_batch_counts_once_it_is_submitted() {
    let mut rig = Rig::new();
    let buffers = [rig.buffer(8), rig.buffer(8), rig.buffer(8)];
    let [first, second, third] = buffers;
    let mut batch = rig.qp.batch();
    batch.push(op::write(first, remote())).unwrap();
    drop(batch);
    let mut batch = rig.qp.batch();
    batch.push(op::write(second, remote())).unwrap();
    std::mem::forget(batch);
    assert_eq!(rig.qp.stats(), QpStats::default());

    let mut batch = rig.qp.batch();
    batch.push(op::write(third, remote()).unsignaled()).unwrap();
    batch.push(op::send_inline(b"abc")).unwrap();
    batch.submit().unwrap();
    let stats = rig.qp.stats().send;
    assert_eq!((stats.posted, stats.posted_bytes, stats.in_flight), (2, 11, 2));
    rig.succeed(1);
    assert!(rig.next().is_some());
    assert_eq!(rig.qp.stats().send.in_flight, 0, "the unsignaled request has ended too");
}

#[test]
fn what_the_provider_refuses_is_not_counted_as_posted() {
    let mut rig = Rig::new();
    let (send, receive) = (rig.buffer(16), rig.buffer(16));
    fail_post(0, libc::EINVAL, BadWr::Chain);
    rig.qp.post_send(op::send(send)).unwrap_err();
    fail_post(0, libc::ENOMEM, BadWr::Chain);
    rig.qp.post_recv(receive, 0).unwrap_err();
    let QpStats { send, recv } = rig.qp.stats();
    assert_eq!((send.posted, send.posted_bytes, send.refused, send.refused_full), (0, 0, 1, 0));
    assert_eq!((recv.posted, recv.refused, recv.refused_full), (0, 1, 1));

    // One of two.
    let (first, second) = (rig.buffer(16), rig.buffer(32));
    fail_post(1, libc::EINVAL, BadWr::Chain);
    let mut batch = rig.qp.batch();
    batch.push(op::send(first)).unwrap();
    batch.push(op::send(second)).unwrap();
    drop(batch.submit().unwrap_err());
    let send = rig.qp.stats().send;
    assert_eq!((send.posted, send.posted_bytes, send.refused, send.in_flight), (1, 16, 2, 1));

    // The device may have a request that it does not blame.
    let buffer = rig.buffer(64);
    fail_post(1, libc::EIO, BadWr::Null);
    rig.qp.post_send(op::send(buffer)).unwrap_err();
    let send = rig.qp.stats().send;
    assert_eq!((send.posted, send.posted_bytes, send.refused, send.in_flight), (2, 80, 2, 2));
    rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    let send = rig.qp.stats().send;
    assert_eq!((send.posted, send.in_flight), (2, 0), "a reset ends what is in flight and forgets nothing");
}

#[test]
fn a_receive_queue_counts_the_receives_that_wait() {
    let mut rig = Rig::new();
    for token in 0..3 {
        rig.qp.post_recv(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    rig.succeed(0);
    assert!(rig.next().is_some());
    let recv = rig.qp.stats().recv;
    assert_eq!((recv.posted, recv.in_flight, recv.refused), (3, 2, 0));
}

#[test]
fn a_completion_queue_counts_by_status() {
    let mut rig = Rig::new();
    for (token, status) in [
        ibv_wc_status::IBV_WC_SUCCESS,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        ibv_wc_status(1234),
    ]
    .into_iter()
    .enumerate()
    {
        rig.send(token as u64, true);
        rig.complete(rig.wr_id(token), status);
    }
    assert!(rig.next().is_some());
    let stats = rig.cq.stats();
    assert_eq!((stats.completions, stats.failed, stats.most_at_once), (1, 0, 6));
    while rig.next().is_some() {}
    // A completion that names no request.
    rig.complete(rig.wr_id(0), ibv_wc_status::IBV_WC_SUCCESS);
    assert!(rig.next().is_none());
    let stats = rig.cq.stats();
    assert_eq!((stats.completions, stats.failed, stats.stale), (6, 5, 1));
    assert_eq!((stats.flushed, stats.retries_exceeded, stats.rnr_retries_exceeded), (1, 1, 1));
    assert_eq!((stats.pollers, stats.backlog), (1, 0));
    assert!(stats.empty_polls >= 2, "{stats:?}");
}

#[test]
fn a_poller_that_goes_leaves_its_counts_and_its_completions() {
    let mut rig = Rig::new();
    for at in 0..3 {
        rig.send(0, true);
        rig.flush(at);
    }
    assert!(rig.next().is_some());
    let poller = rig.cq.poller();
    assert_eq!(rig.cq.stats().pollers, 2);
    drop(std::mem::replace(&mut rig.poller, poller));
    let stats = rig.cq.stats();
    assert_eq!((stats.completions, stats.flushed, stats.most_at_once), (1, 1, 3));
    assert_eq!((stats.pollers, stats.backlog), (1, 2));
    while rig.next().is_some() {}
    let stats = rig.cq.stats();
    assert_eq!((stats.completions, stats.flushed, stats.backlog), (3, 3, 0));
}

#[test]
fn a_scope_counts_in_its_completion_queue() {
    let mut rig = Rig::new();
    let (memory, cq) = (rig.buffer(16), rig.cq.as_raw());
    let Rig { qp, poller, .. } = &mut rig;
    qp.scope(poller, Duration::from_secs(60), |scope| {
        scope.post_send(op::send(memory.lend(..))).unwrap();
        let wr_id = testing::posted(scope.queue_pair().as_raw())[0].wr_id;
        testing::complete(cq, wc(wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
    })
    .unwrap();
    assert_eq!(rig.cq.stats().completions, 1);
    assert_eq!(rig.qp.stats().send.posted_bytes, 16);
}

#[test]
fn counters_only_grow_while_pollers_come_and_go() {
    let mut rig = Rig::new();
    let is_over = AtomicBool::new(false);
    let (cq, rounds) = (rig.cq.clone(), 400);
    thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut last = 0;
            while !is_over.load(Ordering::Acquire) {
                let now = cq.stats().completions;
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
        for round in 0..rounds {
            rig.send(round as u64, true);
            rig.succeed(round);
            assert!(rig.next().is_some());
            rig.poller = rig.cq.poller();
        }
        is_over.store(true, Ordering::Release);
        watcher.join().unwrap();
    });
    assert_eq!(cq.stats().completions, rounds as u64);
}
