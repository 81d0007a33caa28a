//! Hostile but safe code while a request is posted or dropped: caller code that panics when the
//! crate calls it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::*;
use crate::MemoryOwner;
use crate::error::ErrorKind;
use crate::testing::{BadWr, fail, fail_post};

/// Runs `f`, which logs an event, until the subscriber's panic.
pub(super) fn panics<R>(f: impl FnOnce() -> R) {
    assert!(rdma_test_support::where_logging_panics(f).is_err(), "nothing was logged");
}

#[test]
fn a_panic_while_a_failed_post_is_logged_leaves_the_memory_in_flight_and_with_nobody_else() {
    let mut rig = Rig::new();
    let buffers = [rig.buffer(16), rig.buffer(16)];
    fail_post(1, libc::EIO, BadWr::Null);
    panics(|| rig.qp.post_send(op::send(buffers).token(1)));
    // The device may have accepted the request: its memory is still registered, and parked once.
    assert_eq!(regions(), 2);
    rig.flush(0);
    assert_eq!(rig.next(), Some((1, 2, vec![])));
    assert_eq!(regions(), 0);

    let mut rig = Rig::new();
    let buffer = rig.buffer(16);
    fail_post(1, libc::EIO, BadWr::Null);
    panics(|| rig.qp.post_recv(buffer, 2));
    assert_eq!(regions(), 1);
    rig.flush(0);
    assert_eq!(rig.next(), Some((2, 1, vec![])));
    assert_eq!(regions(), 0);
}

#[test]
fn a_panic_while_a_leak_is_logged_does_not_undo_it() {
    let rig = Rig::new();
    let (buffer, pd) = (rig.buffer(16), rig.pd.clone());
    drop(rig);
    fail("dereg_mr", libc::EIO);
    panics(|| drop(buffer));
    drop(pd);
    assert_eq!((regions(), testing::live("pd"), testing::live("context")), (1, 1, 1));

    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let qp = Rig::connect(&pd, &cq);
    let before = (testing::live("pd"), testing::live("cq"), testing::live("context"));
    drop((context, pd, cq));
    fail("destroy_qp", libc::EIO);
    panics(|| drop(qp));
    assert_eq!((testing::live("pd"), testing::live("cq"), testing::live("context")), before);
}

/// Memory whose owner panics when it is dropped.
pub(super) struct Bomb(pub(super) Box<[u8]>);

thread_local! {
    static EXPLODED: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Bomb {
    fn drop(&mut self) {
        EXPLODED.set(EXPLODED.get() + 1);
        assert!(std::thread::panicking(), "the owner's");
    }
}

// SAFETY: MemoryOwner requires that the memory stays valid and is released once: into_parts and
// from_parts are those of `Box<[u8]>`.
unsafe impl MemoryOwner for Bomb {
    type Placement = crate::Host;
    type Parts = usize;

    fn into_parts(mut self) -> (NonNull<u8>, usize, usize) {
        let memory = std::mem::take(&mut self.0);
        let _armed = std::mem::ManuallyDrop::new(self);
        memory.into_parts()
    }

    unsafe fn from_parts(address: NonNull<u8>, len: usize, parts: usize) -> Self {
        // SAFETY: Box::from_parts requires parts that into_parts of such a box returned: the
        // contract of this function.
        Self(unsafe { Box::from_parts(address, len, parts) })
    }
}

#[test]
fn an_owner_that_panics_when_it_is_given_up_does_not_block_the_queue() {
    let mut rig = Rig::new();
    for round in 0..4 * u64::from(SEND_DEPTH) {
        let start = rig.posted().len();
        for _ in 0..3 {
            let bomb = |len| rig.pd.register(Bomb(vec![0; len].into())).unwrap();
            let pieces = [bomb(1), bomb(2)];
            rig.qp.post_send(op::send(pieces).unsignaled()).unwrap();
        }
        let bomb = rig.pd.register(Bomb(vec![0; 3].into())).unwrap();
        rig.qp.post_send(op::send(bomb).token(round)).unwrap();
        rig.succeed(start + 3);
        assert_eq!(rig.poller.poll().unwrap().unwrap().token(), round);
        // The next poll drops the memory that was not taken from the completion, and all owners
        // that panic with it.
        let panic = catch_unwind(AssertUnwindSafe(|| rig.poller.poll().map(|found| found.is_some())));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the owner's"));
        assert_eq!(regions(), 0, "round {round}");
        assert_eq!(EXPLODED.take(), 7);
    }
}

#[test]
fn owners_that_panic_when_a_batch_is_given_up_do_not_block_the_queue() {
    let mut rig = Rig::new();
    for round in 0..u64::from(SEND_DEPTH) {
        let mut batch = rig.qp.batch();
        for len in 1..4 {
            let bomb = rig.pd.register(Bomb(vec![0; len].into())).unwrap();
            batch.push(op::send(bomb)).unwrap();
        }
        let panic = catch_unwind(AssertUnwindSafe(|| drop(batch)));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the owner's"));
        assert_eq!(regions(), 0, "round {round}");
        assert_eq!(EXPLODED.take(), 3);
    }
    // The same when the queue pair is reset.
    for len in 1..4 {
        let bomb = rig.pd.register(Bomb(vec![0; len].into())).unwrap();
        rig.qp.post_send(op::send(bomb)).unwrap();
    }
    let panic = catch_unwind(AssertUnwindSafe(|| rig.qp.modify(&QpAttr::to(QpState::RESET))));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the owner's"));
    assert_eq!((regions(), EXPLODED.take()), (0, 3));
}

#[test]
fn owners_that_panic_when_a_queue_is_given_up_do_not_keep_the_other() {
    let bomb = |rig: &Rig| rig.pd.register(Bomb(vec![0; 1].into())).unwrap();
    let ends: [fn(&mut Rig); 2] = [
        |rig| rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap(),
        |rig| {
            let other = Rig::connect(&rig.pd, &rig.cq);
            std::mem::replace(&mut rig.qp, other).close().unwrap();
        },
    ];
    for end in ends {
        let mut rig = Rig::new();
        rig.qp.post_send(op::send(bomb(&rig))).unwrap();
        rig.qp.post_recv(bomb(&rig), 0).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| end(&mut rig))).is_err());
        assert_eq!((regions(), EXPLODED.take()), (0, 2));
        assert_eq!((rig.qp.send_queue().room(), rig.qp.recv_queue().room()), (SEND_DEPTH, RECV_DEPTH));
    }
}

#[test]
fn requests_beyond_all_measure_are_refused_before_anything_is_allocated_for_them() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4096).unwrap();
    let builder = || QueuePair::builder(&pd).cq(&cq);
    for sges in [17, 1 << 16, u32::MAX] {
        assert_eq!(builder().max_send_sge(sges).build().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(builder().max_recv_sge(sges).build().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for depth in [1025, 4097, u32::MAX] {
        assert!(builder().max_send_wr(depth).build().is_err());
        assert!(builder().max_recv_wr(depth).build().is_err());
    }
    assert!(!testing::calls().contains(&"create_qp"));
    builder().max_send_sge(16).max_recv_sge(16).build().unwrap();
}

#[test]
fn a_scope_keeps_its_deadline_while_completions_that_are_not_its_own_never_end() {
    let mut rig = Rig::new();
    let source = rig.buffer(4);
    let start = Instant::now();
    testing::flood(rig.cq.as_raw(), Some(wc(u64::MAX, ibv_wc_status::IBV_WC_SUCCESS, 1)));
    let Rig { qp, poller, .. } = &mut rig;
    let result = qp.scope(poller, Duration::from_millis(20), |scope| {
        scope.post_send(op::send(source.lend(..))).unwrap();
    });
    assert_eq!(result, Err(ScopeError::TimedOut));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_late_completion_in_a_pollers_hands_is_not_taken_for_a_newer_use() {
    // A ring of one slot comes round fastest.
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let mut qp = QueuePair::builder(&pd).cq(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap().into_manual();
    let mut late = cq.poller();
    qp.post_recv((), 1).unwrap();
    qp.post_send(op::send(pd.allocate(1).unwrap()).token(2)).unwrap();
    for posted in testing::posted(qp.as_raw()) {
        testing::complete(cq.as_raw(), wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, 1));
    }
    // The poller has fetched both, and holds the second while the queue pair is reset and
    // continues.
    assert_eq!(late.poll().unwrap().unwrap().token(), 1);
    qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    // Skip as many requests as minutes of posting would use.
    for rounds in [1_u64 << 30, 1 << 32, 1 << 40] {
        let next = qp.send.next_wr_id().unwrap();
        qp.send.skip_laps(rounds - 1);
        qp.post_send(op::send(pd.allocate(1).unwrap()).token(3)).unwrap();
        assert_ne!(testing::posted(qp.as_raw()).last().unwrap().wr_id, next);
        assert!(late.poll().unwrap().is_none(), "memory in flight was handed out after {rounds} rounds");
        qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    }
}
