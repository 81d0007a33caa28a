//! Posts that fail.

use super::*;
use crate::error::ErrorKind;
use crate::testing::{BadWr, fail_post};

#[test]
fn a_request_that_was_not_taken_comes_back() {
    let mut rig = Rig::new();
    rig.send(1, false);
    fail_post(0, libc::ENOMEM, BadWr::Chain);
    let mut buffer = rig.buffer(16);
    buffer[..3].copy_from_slice(b"abc");
    let error = rig.qp.post_send(op::send(buffer).token(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    let buffer = error.into_memory().unwrap();
    assert_eq!(&buffer[..3], b"abc");
    assert_eq!(rig.qp.state().unwrap(), QpState::RTS);
    // The next signaled request releases the unsignaled one before it.
    rig.qp.post_send(op::send(buffer).token(3)).unwrap();
    rig.succeed(1);
    assert_eq!(rig.next(), Some((3, 1, vec![1])));
    assert_eq!(regions(), 0);

    fail_post(0, libc::EINVAL, BadWr::Chain);
    let buffers = [rig.buffer(1), rig.buffer(2)];
    let error = rig.qp.post_recv(buffers, 4).unwrap_err();
    assert_eq!(error.error().errno(), Some(libc::EINVAL));
    let [first, second] = error.into_memory().unwrap();
    assert_eq!((first.len(), second.len()), (1, 2));
}

#[test]
fn a_post_that_fails_without_saying_where_keeps_the_memory_and_ends_the_queue_pair() {
    for (accept, blame) in [(0, BadWr::Null), (1, BadWr::Null), (1, BadWr::Chain), (0, BadWr::Alien)] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(16);
        fail_post(accept, libc::EIO, blame);
        let error = rig.qp.post_send(op::send(buffer).token(1)).unwrap_err();
        assert!(error.into_memory().is_none());
        assert_eq!(regions(), 1);
        assert_eq!(rig.qp.state().unwrap(), QpState::ERR);
        if accept == 1 {
            rig.flush(0);
            assert_eq!(rig.next(), Some((1, 1, vec![])));
        }
        let buffer = rig.buffer(16);
        fail_post(accept, libc::EIO, blame);
        assert!(rig.qp.post_recv(buffer, 2).unwrap_err().into_memory().is_none());
        drop(rig);
        assert_eq!(regions(), 0);
    }
}

#[test]
fn a_batch_that_fails_half_way_gives_back_what_was_not_taken() {
    let mut rig = Rig::new();
    rig.send(0, false);
    for taken in 0..=3 {
        let buffers: Vec<_> = (1..=4).map(|len| rig.buffer(len)).collect();
        let before = rig.posted().len();
        let mut batch = rig.qp.batch();
        for (token, buffer) in (1..).zip(buffers) {
            batch.push(op::send(buffer).token(token).signaled(token == 3)).unwrap();
        }
        fail_post(taken, libc::ENOMEM, BadWr::Chain);
        let mut error = batch.submit().unwrap_err();
        assert_eq!(error.rejected(), 4 - taken);
        let mut rejected = Vec::new();
        while let Some(mut request) = error.next_rejected() {
            rejected.push((request.token(), request.take_buffer().unwrap().len()));
        }
        let expected: Vec<_> = (taken + 1..=4).map(|at| (at as u64, at)).collect();
        assert_eq!(rejected, expected);
        drop(error);
        assert_eq!(rig.posted().len(), before + taken);
        assert_eq!(rig.qp.state().unwrap(), QpState::RTS);
        rig.send(9, true);
        if taken >= 3 {
            rig.succeed(before + 2);
            assert_eq!(rig.next(), Some((3, 1, vec![1, 2])));
        }
        rig.succeed(before + taken);
        let (token, buffers, unsignaled) = rig.next().unwrap();
        assert_eq!((token, buffers), (9, 1));
        let mut expected: Vec<u64> = if taken < 3 { (1..=taken as u64).collect() } else { vec![] };
        if taken == 0 {
            expected.insert(0, 0);
        }
        assert_eq!(unsignaled, expected, "{taken} taken");
        assert_eq!(regions(), 0);
    }
}

#[test]
fn a_batch_that_fails_without_saying_where_stays_in_flight() {
    for blame in [BadWr::Null, BadWr::Alien] {
        let mut rig = Rig::new();
        let buffers = [rig.buffer(1), rig.buffer(2)];
        let mut batch = rig.qp.batch();
        for (token, buffer) in (1..).zip(buffers) {
            batch.push(op::send(buffer).token(token)).unwrap();
        }
        fail_post(1, libc::EIO, blame);
        let mut error = batch.submit().unwrap_err();
        assert_eq!(error.rejected(), 0);
        assert!(error.next_rejected().is_none());
        drop(error);
        assert_eq!(regions(), 2);
        assert_eq!(rig.qp.state().unwrap(), QpState::ERR);
        rig.flush(0);
        assert_eq!(rig.next(), Some((1, 1, vec![])));
    }
}

#[test]
fn a_batch_is_posted_at_once_and_in_order() {
    let mut rig = Rig::new();
    let calls = || testing::calls().iter().filter(|call| **call == "post_send").count();
    let before = calls();
    let buffers: Vec<_> = (1..=4).map(|len| rig.buffer(len)).collect();
    let flag = 7_u64.to_ne_bytes();
    let mut batch = rig.qp.batch();
    for (token, buffer) in (1..).zip(buffers) {
        batch.push(op::write(buffer, remote()).token(token).unsignaled()).unwrap();
        assert_eq!(batch.len() as u64, token);
    }
    batch.push(op::write_inline(&flag, remote()).token(5)).unwrap();
    assert_eq!(calls(), before);
    batch.submit().unwrap();
    assert_eq!(calls(), before + 1);
    let lengths: Vec<_> = rig.posted().iter().map(|posted| posted.sges[0].length).collect();
    assert_eq!(lengths, [1, 2, 3, 4, 8]);
    // Half of the ring may be unsignaled; the queue signaled the fourth request itself.
    let signaled: Vec<_> = rig.posted().iter().map(is_signaled).collect();
    assert_eq!(signaled, [false, false, false, true, true]);
    rig.succeed(3);
    let mut completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.next_unsignaled().unwrap().token(), 1);
    rig.succeed(4);
    assert_eq!(rig.next(), Some((5, 0, vec![])));
    assert_eq!(regions(), 0);
}

#[test]
fn a_batch_that_is_dropped_posts_nothing() {
    let mut rig = Rig::new();
    for _ in 0..3 * SEND_DEPTH {
        let buffers = [rig.buffer(1), rig.buffer(2)];
        let mut batch = rig.qp.batch();
        for buffer in buffers {
            batch.push(op::send(buffer)).unwrap();
        }
        drop(batch);
        assert_eq!(regions(), 0);
    }
    assert!(rig.posted().is_empty());
    rig.send(1, true);
    rig.succeed(0);
    assert_eq!(rig.next(), Some((1, 1, vec![])));
}

#[test]
fn a_batch_of_receives_is_posted_with_one_doorbell() {
    let mut rig = Rig::new();
    let mut batch = rig.qp.recv_batch();
    for token in 0..u64::from(RECV_DEPTH) {
        batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    let refused = batch.push(rig.pd.allocate(16).unwrap(), 9).unwrap_err();
    assert_eq!((refused.kind(), refused.into_memory().is_some()), (ErrorKind::QueueFull, true));
    assert_eq!(batch.len(), RECV_DEPTH as usize);
    let before = testing::calls().iter().filter(|&&call| call == "post_recv").count();
    batch.submit().unwrap();
    assert_eq!(testing::calls().iter().filter(|&&call| call == "post_recv").count(), before + 1);
    // The queue works on as after single posts, past its end.
    for round in 0..3 * u64::from(RECV_DEPTH) {
        rig.succeed(usize::try_from(round).unwrap());
        let (token, buffers, _) = rig.next().unwrap();
        assert_eq!((token, buffers), (round, 1));
        let buffer = rig.buffer(16);
        let mut batch = rig.qp.recv_batch();
        batch.push(buffer, round + u64::from(RECV_DEPTH)).unwrap();
        batch.submit().unwrap();
    }
    assert_eq!(regions(), RECV_DEPTH as isize);
}

#[test]
fn a_batch_of_receives_that_fails_gives_back_what_was_not_taken() {
    for (accept, blame, known) in [
        (0, BadWr::Chain, true),
        (1, BadWr::Chain, true),
        (2, BadWr::Chain, true),
        (2, BadWr::Null, false),
        (0, BadWr::Alien, false),
    ] {
        let mut rig = Rig::new();
        let mut batch = rig.qp.recv_batch();
        for token in 0..3 {
            batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
        }
        fail_post(accept, libc::EINVAL, blame);
        let mut error = batch.submit().unwrap_err();
        assert_eq!(error.rejected(), if known { 3 - accept } else { 0 });
        let mut rejected = Vec::new();
        while let Some(mut request) = error.next_rejected() {
            assert!(request.take_buffer().is_some());
            rejected.push(request.token());
        }
        drop(error);
        let expected: Vec<u64> = if known { (accept as u64..3).collect() } else { vec![] };
        assert_eq!((rejected, regions()), (expected.clone(), 3 - expected.len() as isize));
        assert_eq!(rig.qp.state().unwrap(), if known { QpState::RTS } else { QpState::ERR });
        drop(rig);
        assert_eq!(regions(), 0);
    }
}

#[test]
fn a_batch_of_receives_that_is_not_submitted_changes_nothing() {
    let mut rig = Rig::new();
    let mut batch = rig.qp.recv_batch();
    for token in 0..3 {
        batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    drop(batch);
    assert_eq!((regions(), rig.posted().len(), rig.qp.recv_queue().room()), (0, 0, RECV_DEPTH));
    rig.qp.recv_batch().submit().unwrap();
    let buffer = rig.buffer(16);
    rig.qp.post_recv(buffer, 7).unwrap();
    rig.succeed(0);
    assert_eq!(rig.next(), Some((7, 1, vec![])));
}

#[test]
#[cfg(not(miri))]
fn a_batch_is_not_posted_by_a_forked_child() {
    let mut rig = Rig::new();
    let mut batch = rig.qp.batch();
    for _ in 0..2 {
        batch.push(op::send(rig.pd.allocate(16).unwrap())).unwrap();
    }
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    let before = testing::calls().len();
    let posted = batch.submit();
    if child == 0 {
        let is_refused = posted.is_err_and(|error| error.error().kind() == ErrorKind::Forked && error.rejected() == 2);
        let stats = rig.qp.stats().send;
        let is_counted = (stats.posted, stats.refused, stats.in_flight) == (0, 2, 0);
        let is_quiet = testing::calls().len() == before;
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if is_refused && is_counted && is_quiet { 0 } else { 1 }) };
    }
    assert!(posted.is_ok());
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
