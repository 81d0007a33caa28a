//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::*;

use crate::common::{Config, PATIENCE, Request, Side, open, pair, readable, verbs};

const LIMIT: c_int = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as c_int;
const MAX_WR: c_int = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 as c_int;

fn sharing() -> Config {
    Config { shared_receives: true, depth: 4, ..Config::default() }
}

fn modify(side: &Side, max_wr: u32, srq_limit: u32, mask: c_int) -> c_int {
    let mut attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit };
    // SAFETY: a live queue, a valid structure.
    unsafe { (verbs().ibv_modify_srq)(side.srq, &raw mut attr, mask) }
}

fn query(side: &Side) -> (u32, u32, u32) {
    let mut attr = ibv_srq_attr::default();
    // SAFETY: a live queue, a valid structure.
    assert_eq!(unsafe { (verbs().ibv_query_srq)(side.srq, &raw mut attr) }, 0);
    (attr.max_wr, attr.max_sge, attr.srq_limit)
}

fn send(from: &Side, to: &Side, wr_id: u64) {
    assert_eq!(from.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, wr_id, &[from.sge(0, 8)])), 0);
    from.success(wr_id);
    to.success(wr_id);
}

/// Waits for an asynchronous event, and acknowledges it.
fn event(side: &Side) -> ibv_async_event {
    assert!(readable(side.async_fd(), PATIENCE));
    let mut event = side.async_event().unwrap();
    // SAFETY: the event was just taken, and is acknowledged once.
    unsafe { (verbs().ibv_ack_async_event)(&raw mut event) };
    event
}

#[test]
fn messages_of_all_queue_pairs_take_from_one_queue() {
    let (a, b) = pair(sharing());
    a.put(0, b"a message");
    for round in 0..10 {
        assert_eq!(b.post_recv(round, &[b.sge(64, 32)]), 0);
        send(&a, &b, round);
        assert_eq!(b.peek(64, 8), b"a messag");
    }
    // The queue pair has no queue of its own.
    let (mut wr, mut bad) = (ibv_recv_wr::default(), ptr::null_mut());
    // SAFETY: a live queue pair, a valid request.
    assert_eq!(unsafe { ibv_post_recv(b.qp, &raw mut wr, &raw mut bad) }, libc::EINVAL);
    assert_eq!(bad, &raw mut wr);
    let (attr, init) = b.query();
    assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge, init.srq), (0, 0, b.srq));
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let side = Side::new(sharing());
    assert_eq!(modify(&side, 0, 3, LIMIT), 0);
    (0..3).for_each(|wr_id| assert_eq!(side.post_recv(wr_id, &[]), 0));
    event(&side);
    assert_eq!(modify(&side, 0, 3, LIMIT), 0);
    assert_eq!(modify(&side, 8, 9, MAX_WR | LIMIT), libc::EINVAL, "a limit beyond the new depth");
    assert_eq!(query(&side), (4, 4, 3));
    assert_eq!(modify(&side, 2, 1, MAX_WR | LIMIT), libc::EINVAL, "three requests are posted");
    assert_eq!(query(&side), (4, 4, 3));
    assert_eq!(modify(&side, 8, 5, MAX_WR | LIMIT), 0);
    assert_eq!(query(&side), (8, 4, 0), "the limit is reached at once");
    event(&side);
}

#[test]
fn the_limit_event_names_the_queue() {
    let (a, b) = pair(sharing());
    (0..4).for_each(|wr_id| assert_eq!(b.post_recv(wr_id, &[b.sge(0, 8)]), 0));
    assert_eq!(b.post_recv(4, &[]), libc::ENOMEM);
    assert_eq!(query(&b), (4, 4, 0));
    assert_eq!(modify(&b, 0, 4, LIMIT), 0);
    assert_eq!(query(&b), (4, 4, 4));
    send(&a, &b, 0);
    let mut reached = event(&b);
    // The establishment of the connection may be reported first.
    while reached.event_type == ibv_event_type::IBV_EVENT_COMM_EST {
        reached = event(&b);
    }
    assert_eq!(reached.event_type, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    // SAFETY: the field for this event type; only compared.
    assert_eq!(unsafe { reached.element.srq }, b.srq);
    // SAFETY: a live queue, whose counter nobody changes now.
    assert_eq!(unsafe { (*b.srq).events_completed }, 1);
    assert_eq!(query(&b), (4, 4, 0));
}

#[test]
fn a_queue_is_resized() {
    let (a, b) = pair(sharing());
    (0..4).for_each(|wr_id| assert_eq!(b.post_recv(wr_id, &[b.sge(0, 8)]), 0));
    assert_eq!(modify(&b, 3, 0, MAX_WR), libc::EINVAL);
    assert_eq!(modify(&b, 5, 6, MAX_WR | LIMIT), libc::EINVAL);
    assert_eq!(modify(&b, 8, 0, MAX_WR), 0);
    assert_eq!(modify(&b, 0, 0, MAX_WR), libc::EINVAL);
    assert_eq!(modify(&b, 0, 0, 4), libc::EINVAL);
    (4..8).for_each(|wr_id| assert_eq!(b.post_recv(wr_id, &[b.sge(0, 8)]), 0));
    assert_eq!(b.post_recv(8, &[]), libc::ENOMEM);
    (0..8).for_each(|wr_id| send(&a, &b, wr_id));
}

#[test]
fn the_last_request_of_a_failed_queue_pair_is_told() {
    let (_a, b) = pair(sharing());
    assert_eq!(b.post_recv(1, &[]), 0);
    assert_eq!(b.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
    let last = event(&b);
    assert_eq!(last.event_type, ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
    // SAFETY: the field for this event type; only compared.
    assert_eq!(unsafe { last.element.qp }, b.qp);
    assert!(b.poll().is_none(), "requests of the shared queue are not flushed");
}

#[test]
fn a_queue_in_use_stays() {
    let side = Side::new(sharing());
    // SAFETY: a live queue.
    assert_eq!(unsafe { (verbs().ibv_destroy_srq)(side.srq) }, libc::EBUSY);
    // A queue of another context is refused.
    let other = Side::new(Config::default());
    let mut init = ibv_qp_init_attr { srq: side.srq, ..other.init_attr() };
    // SAFETY: live objects, a valid structure.
    assert!(unsafe { (verbs().ibv_create_qp)(other.pd, &raw mut init) }.is_null());
    for (max_wr, max_sge) in [(0, 1), (u32::MAX, 1), (1, 17)] {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: a live domain, a valid structure.
        assert!(unsafe { (verbs().ibv_create_srq)(side.pd, &raw mut init) }.is_null());
    }
}

#[test]
fn a_context_that_is_closed_ends_its_queues() {
    let context = open();
    // SAFETY: an open context.
    let pd = unsafe { (verbs().ibv_alloc_pd)(context) };
    let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { attr, ..Default::default() };
    // SAFETY: a live domain, a valid structure.
    let srq = unsafe { (verbs().ibv_create_srq)(pd, &raw mut init) };
    assert!(!srq.is_null());
    // SAFETY: an open context, of which nothing is used any more but to be refused.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
    // SAFETY: the device keeps the memory of objects that ended with their context.
    assert_eq!(unsafe { (verbs().ibv_destroy_srq)(srq) }, libc::EINVAL);
}
