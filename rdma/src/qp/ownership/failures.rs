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
