//! Scopes: borrowed memory comes back once the device no longer accesses it, and not before.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::{Duration, Instant};

use rdma_sys::ibv_cq;

use super::attacks::{Bomb, panics};
use super::*;
use crate::error::ErrorKind;
use crate::testing::{BadWr, fail_post};
use crate::{Scope, ScopeError, WcStatus};

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(20);

/// Completes request `at` of a scope's queue pair.
fn complete(scope: &Scope<'_, '_, Rc>, cq: *mut ibv_cq, at: usize, status: ibv_wc_status) {
    let wr_id = testing::posted(scope.queue_pair().as_raw())[at].wr_id;
    testing::complete(cq, wc(wr_id, status, 0));
}

#[test]
fn a_scope_waits_for_its_requests_and_keeps_the_completions_of_others() {
    let mut rig = Rig::new();
    let cq = rig.cq.as_raw();
    rig.send(1, true);
    let (mut sink, source) = (rig.buffer(16), rig.buffer(16));
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, SECOND, |scope| {
        scope.post_send(op::read(sink.lend_mut(..8), remote())).unwrap();
        scope.post_send(op::send([source.lend(..4), source.lend(..)])).unwrap();
        scope.post_recv(()).unwrap();
        for at in [0, 1] {
            complete(scope, cq, at, ibv_wc_status::IBV_WC_SUCCESS);
        }
        assert_eq!(source.len(), 16, "what is only read stays readable");
        complete(scope, cq, 2, ibv_wc_status::IBV_WC_SUCCESS);
        complete(scope, cq, 3, ibv_wc_status::IBV_WC_SUCCESS);
        scope.wait().unwrap();
        5
    });
    assert_eq!(result, Ok(5));
    sink[0] = 1;
    assert_eq!(rig.next(), Some((1, 1, vec![])));
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), 0);
}

#[test]
fn another_poller_may_take_a_scopes_completion() {
    let mut rig = Rig::new();
    let cq = rig.cq.as_raw();
    let mut other = rig.cq.poller();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, SECOND, |scope| {
        scope.post_send(op::send(source.lend(..))).unwrap();
        complete(scope, cq, 0, ibv_wc_status::IBV_WC_SUCCESS);
        assert!(other.poll().unwrap().is_none(), "it is the scope's, not ours");
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn a_failure_is_the_scopes_result() {
    let mut rig = Rig::new();
    let cq = rig.cq.as_raw();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, SECOND, |scope| {
        scope.post_send(op::write(source.lend(..), remote())).unwrap();
        scope.post_send(op::write(source.lend(..), remote())).unwrap();
        complete(scope, cq, 0, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        complete(scope, cq, 1, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    });
    let Err(ScopeError::Failed(error)) = result else { panic!("{result:?}") };
    assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn a_post_that_is_refused_lends_nothing() {
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    let mut sink = rig.buffer(100);
    let Rig { qp, poller, .. } = &mut rig;
    let start = Instant::now();
    let result = qp.scope(poller, SECOND, |scope| {
        fail_post(0, libc::ENOMEM, BadWr::Chain);
        let error = scope.post_send(op::send(source.lend(..))).unwrap_err();
        assert!(error.into_memory().is_some());
        let error = scope.post_send(op::read(sink.lend_mut(..), remote())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
    });
    assert_eq!(result, Ok(()));
    assert!(start.elapsed() < SECOND);
    // The slot of the refused request is free again.
    for token in 0..u64::from(SEND_DEPTH) - 1 {
        rig.send(token, true);
    }
}

#[test]
fn a_panic_waits_too() {
    let mut rig = Rig::new();
    let cq = rig.cq.as_raw();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        qp.scope(poller, SECOND, |scope| {
            scope.post_send(op::send(source.lend(..))).unwrap();
            complete(scope, cq, 0, ibv_wc_status::IBV_WC_SUCCESS);
            panic!("the body's");
        })
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the body's"));
    assert_eq!(rig.next(), None);
    assert_eq!(rig.cq.stale_completions(), 0);
}

#[test]
fn past_its_deadline_the_queue_pair_is_flushed_or_else_destroyed() {
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    rig.send(1, true);
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, SOON, |scope| {
        scope.post_send(op::send(source.lend(..))).unwrap();
    });
    assert_eq!(result, Err(ScopeError::TimedOut));
    // This provider flushes nothing, so only destroying the queue pair ended the request.
    let calls = testing::calls();
    let ends: Vec<_> = calls.iter().filter(|call| ["modify_qp", "destroy_qp"].contains(call)).rev().take(2).collect();
    assert_eq!(ends, [&"destroy_qp", &"modify_qp"]);
    assert_eq!(testing::live("qp"), 0);
    // The destroyed queue pair refuses all posts.
    let buffer = rig.buffer(4);
    assert!(rig.qp.post_send(op::send(buffer)).unwrap_err().into_memory().is_some());
    assert!(rig.qp.post_recv((), 0).is_err());
    assert!(rig.qp.batch().push(op::send(())).is_err());
    assert_eq!(rig.qp.state().unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(rig.qp.set_error().unwrap_err().kind(), ErrorKind::NoDevice);
    drop(source);
    drop(rig);
    assert_eq!((regions(), testing::live("cq"), testing::live("qp")), (0, 0, 0));
}

#[test]
#[cfg(not(miri))] // which starts no process
fn a_scope_that_cannot_end_aborts_the_process() {
    const MARK: &str = "RDMA_TEST_SCOPE_ABORTS";
    if std::env::var_os(MARK).is_none() {
        let name = "qp::ownership::scopes::a_scope_that_cannot_end_aborts_the_process";
        let output = rdma_test_support::alone(&[name]).env(MARK, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("about to end"), "{text}");
        assert!(!text.contains("returned"), "{text}");
        assert!(!output.status.success());
        return;
    }
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    let _ = qp.scope(poller, SOON, |scope| {
        scope.post_send(op::send(source.lend(..))).unwrap();
        testing::fail("destroy_qp", libc::EIO);
        println!("about to end");
    });
    println!("returned");
}

#[test]
fn a_subscriber_that_panics_at_a_timeout_does_so_when_nothing_is_in_flight() {
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    // If the destroy did not end the request, the process would be aborted.
    panics(|| {
        qp.scope(poller, SOON, |scope| {
            scope.post_send(op::send(source.lend(..))).unwrap();
        })
    });
    assert_eq!(testing::live("qp"), 0);
    drop(source);
    drop(rig);
    assert_eq!(regions(), 0);
}

#[test]
fn a_body_whose_panic_panics_when_dropped_aborts_nothing() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    let Rig { qp, poller, .. } = &mut rig;
    // The subscriber's panic takes the place of the body's.
    panics(|| {
        qp.scope(poller, SOON, |scope| -> () {
            scope.post_send(op::send(source.lend(..))).unwrap();
            panic_any(Payload);
        })
    });
    assert_eq!(testing::live("qp"), 0);
}

#[test]
fn owners_that_panic_while_a_scope_waits_abort_nothing() {
    let mut rig = Rig::new();
    let cq = rig.cq.as_raw();
    let source = rig.buffer(4);
    let bomb = || rig.pd.register(Bomb(vec![0; 1].into())).unwrap();
    // The scope's first request ends the unsignaled ones before it, its second is late.
    let (unsignaled, received) = (bomb(), bomb());
    rig.qp.post_send(op::send(unsignaled).unsignaled()).unwrap();
    rig.qp.post_recv(received, 0).unwrap();
    let Rig { qp, poller, .. } = &mut rig;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        qp.scope(poller, SOON, |scope| {
            scope.post_send(op::send(source.lend(..))).unwrap();
            scope.post_send(op::send(source.lend(..))).unwrap();
            scope.post_recv(()).unwrap();
            complete(scope, cq, 2, ibv_wc_status::IBV_WC_SUCCESS);
        })
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the owner's"));
    assert_eq!(testing::live("qp"), 0);
    drop(source);
    assert_eq!(regions(), 0);
}

#[test]
fn a_scope_needs_its_queues_poller() {
    let mut rig = Rig::new();
    let other = rig.pd.context().create_cq(4).unwrap();
    let source = rig.buffer(4);
    let result = rig.qp.scope(&mut other.poller(), SECOND, |scope| {
        let error = scope.post_send(op::send(source.lend(..))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(scope.post_recv(()).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
    assert_eq!(result, Ok(()));
}
