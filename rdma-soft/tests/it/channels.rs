//! Completion channels and asynchronous events: all ways of waiting, acknowledgement, and
//! destruction.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rdma_sys::*;

use crate::common::{Config, PATIENCE, Request, Side, pair, readable, set_nonblocking, verbs};

type Op = ibv_wr_opcode;

const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const NOW: Duration = Duration::ZERO;

/// A side that several threads use at once, as verbs allows.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a Side);
// SAFETY: the device's objects may be used from any thread; the tests order what they must.
unsafe impl Send for Shared<'_> {}

impl Shared<'_> {
    fn side(&self) -> &Side {
        self.0
    }
}

fn send(from: &Side, to: &Side, flags: u32) {
    assert_eq!(to.post_recv(1, &[]), 0);
    assert_eq!(from.post(&Request::new(Op::IBV_WR_SEND, 2, &[]).flags(flags | SIGNALED)), 0);
    from.success(2);
}

#[test]
fn an_armed_queue_fires_once() {
    let (a, b) = pair(Config::default());
    send(&a, &b, 0);
    assert!(!readable(b.channel_fd(), NOW), "it was not armed");
    b.success(1);
    b.arm(false);
    assert!(!readable(b.channel_fd(), NOW));
    send(&a, &b, 0);
    assert!(readable(b.channel_fd(), PATIENCE));
    send(&a, &b, 0);
    b.take_event().unwrap();
    assert!(!readable(b.channel_fd(), NOW), "one event for one arming");
    for _ in 0..2 {
        b.success(1);
    }
}

#[test]
fn arming_a_queue_that_holds_a_completion_fires_at_once() {
    let (a, b) = pair(Config::default());
    send(&a, &b, 0);
    b.arm(true);
    assert!(!readable(b.channel_fd(), NOW), "armed for solicited completions only");
    b.arm(false);
    assert!(readable(b.channel_fd(), PATIENCE));
    b.take_event().unwrap();
    send(&a, &b, 0);
    assert!(!readable(b.channel_fd(), NOW), "one event for one arming");
    b.arm(false);
    b.take_event().unwrap();
    b.arm(false);
    assert!(!readable(b.channel_fd(), NOW), "each completion has had its event");
    send(&a, &b, 0);
    b.take_event().unwrap();
    for _ in 0..3 {
        b.success(1);
    }
    b.arm(false);
    assert!(!readable(b.channel_fd(), NOW), "the queue is empty");
}

#[test]
fn solicited_events() {
    let (a, b) = pair(Config::default());
    b.arm(true);
    send(&a, &b, 0);
    assert!(!readable(b.channel_fd(), NOW));
    send(&a, &b, SOLICITED);
    assert!(readable(b.channel_fd(), PATIENCE));
    b.take_event().unwrap();
    // A completion with an error fires a CQ armed for solicited completions.
    b.arm(true);
    assert_eq!(b.post_recv(3, &[]), 0);
    assert_eq!(b.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
    assert!(readable(b.channel_fd(), PATIENCE));
    b.take_event().unwrap();
    // Arming for solicited completions after arming for all leaves the CQ armed for all.
    a.arm(false);
    a.arm(true);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 9, &[])), 0);
    assert!(readable(a.channel_fd(), PATIENCE));
    a.take_event().unwrap();
}

#[test]
fn nonblocking_until_eagain() {
    let (a, b) = pair(Config::default());
    set_nonblocking(b.channel_fd());
    for _ in 0..3 {
        let empty = b.take_event().unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        b.arm(false);
        send(&a, &b, 0);
        assert!(readable(b.channel_fd(), PATIENCE));
        b.take_event().unwrap();
        b.success(1);
    }
}

#[test]
fn edge_triggered_epoll() {
    let (a, b) = pair(Config::default());
    // SAFETY: the function has no requirement.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: just opened, nobody else's.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut interest = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
    // SAFETY: open descriptors, a valid structure.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, b.channel_fd(), &raw mut interest) };
    assert_eq!(added, 0);
    let wait = |timeout| {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: space for one event.
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, timeout) }
    };
    for _ in 0..3 {
        b.arm(false);
        send(&a, &b, 0);
        assert_eq!(wait(10_000), 1);
        assert_eq!(wait(0), 0, "an edge comes once");
        // The event stays unread: the next event is another edge all the same.
    }
    for _ in 0..3 {
        b.take_event().unwrap();
    }
}

#[test]
fn a_thread_that_blocks_is_woken() {
    let (a, b) = pair(Config::default());
    b.arm(false);
    let shared = Shared(&b);
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let side = shared.side();
            side.take_event().unwrap();
            side.success(1);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        send(&a, &b, 0);
    });
}

#[test]
fn destroying_a_queue_waits_for_acknowledgements() {
    let (a, mut b) = pair(Config::default());
    b.arm(false);
    send(&a, &b, 0);
    let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a live channel, valid out parameters.
    assert_eq!(unsafe { (verbs().ibv_get_cq_event)(b.channel, &raw mut cq, &raw mut user) }, 0);
    // A second event is never read: destroying the CQ removes it.
    b.arm(false);
    send(&a, &b, 0);
    assert!(readable(b.channel_fd(), PATIENCE));
    // SAFETY: a live queue pair, not used any more.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(b.qp) }, 0);
    b.qp = ptr::null_mut();
    // SAFETY: a live channel.
    assert_eq!(unsafe { (*b.channel).refcnt }, 1);
    let destroyed = AtomicBool::new(false);
    let shared = Shared(&b);
    thread::scope(|scope| {
        let flag = &destroyed;
        scope.spawn(move || {
            // SAFETY: nobody uses the queue any more but to acknowledge, for which this waits.
            assert_eq!(unsafe { (verbs().ibv_destroy_cq)(shared.side().cq) }, 0);
            flag.store(true, Ordering::Release);
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!destroyed.load(Ordering::Acquire), "an event is not acknowledged");
        // SAFETY: alive: its destruction waits for this.
        unsafe { (verbs().ibv_ack_cq_events)(cq, 1) };
    });
    assert!(destroyed.load(Ordering::Acquire));
    assert!(!readable(b.channel_fd(), NOW), "the unread event is gone");
    // SAFETY: a live channel.
    assert_eq!(unsafe { (*b.channel).refcnt }, 0);
    // The side's `drop` destroys a CQ and a QP.
    // SAFETY: an open context and its channel.
    b.cq = unsafe { (verbs().ibv_create_cq)(b.context, 1, ptr::null_mut(), b.channel, 0) };
    b.qp = b.make_qp();
}

#[test]
fn async_events_block_and_are_acknowledged() {
    let (a, mut b) = pair(Config::default());
    let to = b.endpoint();
    assert!(!readable(b.async_fd(), NOW));
    let shared = Shared(&b);
    let mut event = thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let event = shared.side().async_event().unwrap();
            // SAFETY: an event about a queue pair.
            (event.event_type, unsafe { event.element.qp }.addr())
        });
        thread::sleep(Duration::from_millis(30));
        let bad = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 8)]).remote(to.addr, to.rkey ^ 0x1111_0000);
        assert_eq!(a.post(&bad), 0);
        a.expect(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        let (event_type, address) = waiter.join().unwrap();
        assert_eq!(address, b.qp.addr());
        ibv_async_event { event_type, element: ibv_async_event__bindgen_ty_1 { qp: b.qp } }
    });
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
    let destroyed = AtomicBool::new(false);
    let shared = Shared(&b);
    thread::scope(|scope| {
        let flag = &destroyed;
        scope.spawn(move || {
            // SAFETY: nobody uses the queue pair any more but to acknowledge, for which this waits.
            assert_eq!(unsafe { (verbs().ibv_destroy_qp)(shared.side().qp) }, 0);
            flag.store(true, Ordering::Release);
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!destroyed.load(Ordering::Acquire));
        // SAFETY: the event that was read.
        unsafe { (verbs().ibv_ack_async_event)(&raw mut event) };
    });
    b.qp = ptr::null_mut();
    set_nonblocking(b.async_fd());
    assert_eq!(b.async_event().err().unwrap().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn unread_async_events_go_with_their_object() {
    let (a, mut b) = pair(Config::default());
    let to = b.endpoint();
    let bad = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 8)]).remote(to.addr, to.rkey ^ 0x1111_0000);
    assert_eq!(a.post(&bad), 0);
    assert!(readable(b.async_fd(), PATIENCE));
    // SAFETY: a live queue pair, not used any more.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(b.qp) }, 0);
    b.qp = ptr::null_mut();
    assert!(!readable(b.async_fd(), NOW));
}

#[test]
fn an_overrun_queue_is_in_error() {
    let (a, b) = pair(Config { cq_depth: 2, ..Config::default() });
    for id in 0..3 {
        assert_eq!(b.post_recv(id, &[]), 0);
    }
    for id in 0..3 {
        assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, id, &[]).flags(0)), 0);
    }
    assert!(readable(b.async_fd(), PATIENCE));
    let mut event = b.async_event().unwrap();
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_CQ_ERR);
    // SAFETY: an event about a completion queue.
    assert_eq!(unsafe { event.element.cq }, b.cq);
    // SAFETY: an event that was just read.
    unsafe { (verbs().ibv_ack_async_event)(&raw mut event) };
    // SAFETY: a live queue.
    assert_eq!(unsafe { (*b.cq).async_events_completed }, 1);
    // Completions from before the overrun may still be polled; then polling fails.
    let poll = || {
        let mut wc = ibv_wc::default();
        // SAFETY: a live queue, space for one completion.
        unsafe { ibv_poll_cq(b.cq, 1, &raw mut wc) }
    };
    assert!((0..3).any(|_| poll() < 0));
    // Acknowledge the events of the queue pairs too.
    set_nonblocking(b.async_fd());
    while let Ok(mut event) = b.async_event() {
        // SAFETY: an event that was just read.
        unsafe { (verbs().ibv_ack_async_event)(&raw mut event) };
    }
}
