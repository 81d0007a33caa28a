//! The crate documentation's table of where a buffer is after its request, tested row by row.

use super::*;
use crate::testing::fail;

#[test]
fn a_completion_gives_back_its_own_request_and_the_unsignaled_ones_before_it() {
    for status in [ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_status::IBV_WC_REM_ACCESS_ERR] {
        let mut rig = Rig::new();
        rig.send(1, true);
        rig.send(2, false);
        rig.send(3, false);
        rig.send(4, true);
        rig.send(5, true);
        assert_eq!(regions(), 5);
        rig.succeed(0);
        assert_eq!(rig.next(), Some((1, 1, vec![])));
        assert_eq!(regions(), 4);
        rig.complete(rig.wr_id(3), status);
        assert_eq!(rig.next(), Some((4, 1, vec![2, 3])));
        assert_eq!(regions(), 1);
        assert_eq!(rig.next(), None);
        rig.succeed(4);
        assert_eq!(rig.next(), Some((5, 1, vec![])));
        assert_eq!(regions(), 0);
    }
}

#[test]
fn what_a_completion_gives_back_and_nobody_takes_is_given_up() {
    let mut rig = Rig::new();
    rig.send(1, false);
    let (a, b) = (rig.buffer(1), rig.buffer(2));
    rig.qp.post_send(op::send((a, b)).token(2)).unwrap();
    rig.send(3, true);
    rig.succeed(1);
    rig.succeed(2);
    let mut completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.take_buffer().unwrap().len(), 1);
    assert_eq!(regions(), 3);
    let completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.token(), 3);
    assert_eq!(regions(), 1);
    rig.send(4, true);
    rig.send(5, true);
    rig.succeed(3);
    rig.succeed(4);
    let completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.token(), 4);
    // Memory that the poller holds is dropped with it; the completion that it has only fetched goes
    // to the next poller.
    rig.poller = rig.cq.poller();
    assert_eq!(regions(), 1);
    assert_eq!(rig.next(), Some((5, 1, vec![])));
}

#[test]
fn a_flush_gives_everything_back() {
    let mut rig = Rig::new();
    rig.send(1, false);
    rig.send(2, true);
    rig.send(3, false);
    let buffer = rig.buffer(8);
    rig.qp.post_recv(buffer, 9).unwrap();
    rig.qp.set_error().unwrap();
    // A provider also reports failed requests that were posted unsignaled.
    rig.flush(0);
    rig.flush(1);
    rig.flush(2);
    rig.flush(3);
    for (token, count) in [(1, 3), (2, 2), (3, 1), (9, 0)] {
        let mut completion = rig.poller.poll().unwrap().unwrap();
        assert_eq!(completion.token(), token);
        assert_eq!(completion.status().unwrap_err().status, crate::WcStatus::WR_FLUSH_ERR);
        assert!(completion.next_unsignaled().is_none());
        drop(completion.take_buffer().unwrap());
        assert_eq!(regions(), count);
    }
    assert_eq!(rig.cq.stale_completions(), 0);
}

#[test]
fn a_reset_releases_everything_and_late_completions_are_stale() {
    let mut rig = Rig::new();
    rig.send(1, false);
    rig.send(2, true);
    let buffer = rig.buffer(8);
    rig.qp.post_recv(buffer, 3).unwrap();
    let old: Vec<u64> = rig.posted().iter().map(|posted| posted.wr_id).collect();
    assert_eq!(regions(), 3);
    rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    assert_eq!(regions(), 0);
    // New requests are posted, and then completions of the old ones arrive that the provider left
    // in the queue.
    for token in 10..10 + u64::from(SEND_DEPTH) {
        rig.send(token, true);
    }
    for &wr_id in &old {
        rig.complete(wr_id, ibv_wc_status::IBV_WC_SUCCESS);
    }
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), 3);
    assert_eq!(regions(), SEND_DEPTH as isize);
    rig.succeed(3);
    assert_eq!(rig.next(), Some((10, 1, vec![])));
}

#[test]
fn a_destroy_releases_everything_and_late_completions_are_stale() {
    let mut rig = Rig::new();
    rig.send(1, true);
    rig.send(2, true);
    let (first, second) = (rig.wr_id(0), rig.wr_id(1));
    // The first completion has even been fetched when the queue pair is destroyed.
    rig.succeed(0);
    rig.succeed(1);
    assert_eq!(rig.next(), Some((1, 1, vec![])));
    // A new queue pair gets the old one's ring.
    rig.qp = Rig::connect(&rig.pd, &rig.cq);
    assert_eq!(regions(), 0);
    rig.send(3, true);
    assert_eq!(rig.next(), None);
    rig.complete(first, ibv_wc_status::IBV_WC_SUCCESS);
    rig.complete(second, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), 3);
    rig.succeed(0);
    assert_eq!(rig.next(), Some((3, 1, vec![])));
}

#[test]
fn a_failed_reset_releases_nothing() {
    let mut rig = Rig::new();
    rig.send(1, true);
    fail("modify_qp", libc::EIO);
    rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap_err();
    assert_eq!(regions(), 1);
    rig.succeed(0);
    assert_eq!(rig.next(), Some((1, 1, vec![])));
}

#[test]
fn a_failed_destroy_leaks_the_ring_its_regions_and_parents() {
    let mut rig = Rig::new();
    rig.send(1, true);
    fail("destroy_qp", libc::EIO);
    let Rig { pd, cq, poller, qp } = rig;
    drop(qp);
    drop((poller, cq, pd));
    assert_eq!((testing::live("qp"), regions(), testing::live("cq"), testing::live("pd")), (1, 1, 1, 1));
}

#[test]
fn a_failed_close_keeps_everything_in_flight() {
    let mut rig = Rig::new();
    rig.send(1, true);
    fail("destroy_qp", libc::EBUSY);
    let Rig { qp, mut poller, cq, .. } = rig;
    let qp = qp.close().unwrap_err().object;
    assert_eq!(regions(), 1);
    let wr_id = testing::posted(qp.as_raw())[0].wr_id;
    testing::complete(cq.as_raw(), wc(wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
    assert!(poller.poll().unwrap().unwrap().take_buffer().is_some());
    qp.close().unwrap();
}

#[test]
fn a_failed_poll_releases_nothing() {
    let mut rig = Rig::new();
    rig.send(1, true);
    rig.succeed(0);
    fail("poll_cq", libc::EIO);
    rig.poller.poll().unwrap_err();
    assert_eq!(regions(), 1);
    assert_eq!(rig.next(), Some((1, 1, vec![])));
}

#[test]
fn a_completion_is_taken_once() {
    let mut rig = Rig::new();
    rig.send(1, true);
    rig.send(2, true);
    rig.succeed(0);
    rig.succeed(0);
    assert_eq!(rig.next(), Some((1, 1, vec![])));
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), 1);
    assert_eq!(regions(), 1);
}

#[test]
fn identifiers_that_nobody_made_release_nothing() {
    let mut rig = Rig::new();
    rig.send(1, true);
    let wr_id = rig.wr_id(0);
    let forged = (0..64).map(|bit| wr_id ^ 1 << bit).chain([0, u64::MAX]);
    let count = forged.map(|wr_id| rig.complete(wr_id, ibv_wc_status::IBV_WC_SUCCESS)).count();
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), count as u64);
    assert_eq!(regions(), 1);
}

#[test]
fn a_reset_under_load() {
    let mut rig = Rig::new();
    for round in 0..50 {
        for token in 0..u64::from(SEND_DEPTH) {
            rig.send(token, token % 3 == 0);
        }
        let start = rig.posted().len() - SEND_DEPTH as usize;
        // Some requests complete in time, some late.
        rig.succeed(start);
        assert_eq!(rig.next(), Some((0, 1, vec![])));
        rig.succeed(start + 3);
        rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
        assert_eq!(regions(), 0, "round {round}");
        assert_eq!(rig.next(), None);
    }
    assert_eq!(rig.cq.stale_completions(), 50);
}

#[test]
fn forgetting_is_harmless() {
    let mut rig = Rig::new();
    rig.send(1, true);
    rig.send(2, true);
    rig.succeed(0);
    rig.succeed(1);
    assert_eq!(rig.poller.poll().unwrap().unwrap().token(), 1);
    assert_eq!(rig.next(), Some((2, 1, vec![])));
    assert_eq!(regions(), 0);

    let buffer = rig.buffer(8);
    let mut batch = rig.qp.batch();
    batch.push(op::send(buffer).token(3)).unwrap();
    #[allow(clippy::mem_forget, reason = "that is what is tested")]
    std::mem::forget(batch);
    assert_eq!(regions(), 1, "the batch's buffer is leaked");
    rig.send(4, true);
    assert_eq!(rig.posted().len(), 3);
    rig.succeed(2);
    assert_eq!(rig.next(), Some((4, 1, vec![])));

    rig.send(5, true);
    rig.send(6, true);
    rig.succeed(3);
    rig.succeed(4);
    assert!(rig.poller.poll().unwrap().is_some());
    // The poller is forgotten with one completion held and one fetched: another poller gets the
    // second one.
    let poller = std::mem::replace(&mut rig.poller, rig.cq.poller());
    #[allow(clippy::mem_forget, reason = "that is what is tested")]
    std::mem::forget(poller);
    assert_eq!(rig.next(), Some((6, 1, vec![])));
    rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    assert_eq!(regions(), 2, "the completion that it held is leaked");

    rig.send(7, true);
    let Rig { qp, cq, .. } = rig;
    #[allow(clippy::mem_forget, reason = "that is what is tested")]
    std::mem::forget(qp);
    drop(cq);
    assert_eq!((regions(), testing::live("cq"), testing::live("qp")), (3, 1, 1));
}
