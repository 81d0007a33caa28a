use super::*;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

impl<T> EventQueue<T> {
    fn push(&self, event: T) {
        self.offer(event, |_| true);
    }
}

fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` requires as many valid pollfds as its count says: `poll` is one.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLIN != 0
}

fn set_nonblocking(fd: RawFd) {
    // SAFETY: `fcntl` requires the argument that the command takes: `F_GETFL` takes none.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: `fcntl` requires the argument that the command takes: `F_SETFL` takes an int.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
}

#[test]
fn level_follows_the_queue_and_nonblocking_is_obeyed() {
    let queue = EventQueue::new().unwrap();
    set_nonblocking(queue.raw_fd());
    assert!(!readable(queue.raw_fd()));
    for event in 1..=3 {
        queue.push(event);
    }
    for expected in 1..=3 {
        assert!(readable(queue.raw_fd()));
        assert_eq!(queue.wait(|event| event).unwrap(), expected);
    }
    assert!(!readable(queue.raw_fd()));
    let empty = queue.wait(|_| ()).unwrap_err();
    assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn the_descriptor_is_closed_on_exec() {
    let queue = EventQueue::<()>::new().unwrap();
    // SAFETY: `fcntl` requires the argument that the command takes: `F_GETFD` takes none.
    let flags = unsafe { libc::fcntl(queue.raw_fd(), libc::F_GETFD) };
    assert_ne!(flags & libc::FD_CLOEXEC, 0);
}

#[test]
fn a_blocking_wait_is_woken() {
    let queue = Arc::new(EventQueue::new().unwrap());
    let waiter = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.wait(|event| event).unwrap()
    });
    thread::sleep(Duration::from_millis(30));
    queue.push(7);
    assert_eq!(waiter.join().unwrap(), 7);
}

#[test]
fn edge_triggered_epoll_fires_once_per_event() {
    let queue = EventQueue::new().unwrap();
    // SAFETY: `epoll_create1` has no requirement.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    // SAFETY: `from_raw_fd` requires an open descriptor that nobody else owns: `epoll` was just
    // made.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let flags = libc::EPOLLIN | libc::EPOLLET;
    let mut interest = libc::epoll_event { events: flags as u32, u64: 0 };
    // SAFETY: `epoll_ctl` requires a valid event: `interest` is a local.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, queue.raw_fd(), &raw mut interest) };
    assert_eq!(added, 0);
    let fired = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `epoll_wait` requires space for as many events as its limit says: `event` is
        // one.
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0) }
    };
    for _ in 0..3 {
        queue.push(());
        assert_eq!(fired(), 1);
        assert_eq!(fired(), 0);
    }
}

#[test]
fn readiness_may_follow_its_event() {
    let queue = Arc::new(EventQueue::new().unwrap());
    assert!(queue.enqueue(1, |_| true));
    assert!(!readable(queue.raw_fd()));
    Waker::from(Arc::clone(&queue)).wake();
    assert_eq!(queue.wait(|event| event).unwrap(), 1);
    assert!(!queue.enqueue(2, |_| false), "not admitted");
    let reception = queue.receive().unwrap();
    assert!(!queue.enqueue(3, |_| true), "a thread has reserved the event");
    assert_eq!(reception.take(|event| event), Some(3));
}

static WOKEN: AtomicU32 = AtomicU32::new(0);

fn wake() {
    WOKEN.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_reception_gets_one_event_and_wakes_its_thread() {
    let queue = EventQueue::new().unwrap();
    let reception = queue.receive().unwrap();
    assert!(queue.receive().is_none(), "one thread has reserved the next event");
    assert!(reception.may_sleep(wake));
    queue.push(1);
    queue.push(2);
    assert_eq!(WOKEN.load(Ordering::Relaxed), 1);
    assert!(readable(queue.raw_fd()), "the second event is for others");
    assert!(!reception.may_sleep(wake));
    reception.stay_awake();
    assert_eq!(reception.take(|event| event), Some(1));
    assert_eq!(reception.take(|event| event), None);
    queue.push(3);
    assert_eq!(WOKEN.load(Ordering::Relaxed), 1, "the thread is awake");
    drop(reception);
    // Nothing is lost.
    assert!(queue.receive().is_none(), "events are queued");
    let mut left = [0; 2].map(|_| queue.wait(|event| event).unwrap());
    left.sort_unstable();
    assert_eq!(left, [2, 3]);
    assert!(!readable(queue.raw_fd()));
}

#[test]
fn an_event_in_a_reception_can_be_retracted() {
    let queue = EventQueue::new().unwrap();
    let reception = queue.receive().unwrap();
    queue.push(1);
    queue.retract(|event| *event == 1, || ());
    assert_eq!(reception.take(|event| event), None);
    drop(reception);
    assert!(!readable(queue.raw_fd()));
    set_nonblocking(queue.raw_fd());
    assert!(queue.receive().is_none(), "nobody may wait");
}

#[test]
fn a_reception_whose_event_is_retracted_gets_the_next_one() {
    let queue = EventQueue::new().unwrap();
    let reception = queue.receive().unwrap();
    queue.push(1);
    queue.push(2);
    queue.retract(|event| *event == 1, || ());
    assert!(!reception.may_sleep(wake_nobody));
    assert_eq!(reception.take(|event| event), Some(2));
    assert!(!readable(queue.raw_fd()));
}

fn wake_nobody() {}

#[test]
fn retracted_events_leave_no_readiness_behind() {
    let queue = EventQueue::new().unwrap();
    for event in 0..6 {
        queue.push(event);
    }
    queue.retract(|event| event % 2 == 0, || ());
    for expected in [1, 3, 5] {
        assert_eq!(queue.wait(|event| event).unwrap(), expected);
    }
    assert!(!readable(queue.raw_fd()));
}

#[test]
fn an_event_that_is_retracted_before_its_readiness_leaves_none_behind() {
    let queue = Arc::new(EventQueue::new().unwrap());
    assert!(queue.enqueue(1, |_| true) && queue.enqueue(2, |_| true));
    queue.push(3);
    queue.retract(|event| *event != 2, || ());
    for _ in 0..2 {
        Waker::from(Arc::clone(&queue)).wake();
    }
    assert_eq!(queue.wait(|event| event).unwrap(), 2);
    assert!(!readable(queue.raw_fd()));
    // As if the thread in a reception took the event that another thread has yet to count.
    let reception = queue.receive().unwrap();
    queue.push(4);
    assert!(queue.enqueue(5, |_| true));
    queue.retract(|event| *event == 4, || ());
    Waker::from(Arc::clone(&queue)).wake();
    assert_eq!(reception.take(|event| event), Some(5));
    drop(reception);
    assert!(!readable(queue.raw_fd()));
    queue.push(6);
    assert!(readable(queue.raw_fd()));
}

#[test]
fn extracted_events_come_in_order() {
    let queue = EventQueue::new().unwrap();
    for event in 0..6 {
        queue.push(event);
    }
    assert_eq!(queue.extract(|event| event % 2 == 0, || "sealed"), (vec![0, 2, 4], "sealed"));
    assert_eq!(queue.wait(|event| event).unwrap(), 1);
}

#[test]
fn a_wait_survives_a_retract_that_was_slower_than_its_read() {
    let queue = Arc::new(EventQueue::new().unwrap());
    let stop = Instant::now() + Duration::from_millis(200);
    let waiter = thread::spawn({
        let queue = Arc::clone(&queue);
        move || while queue.wait(|event| event).unwrap() != u32::MAX {}
    });
    while Instant::now() < stop {
        queue.push(1);
        queue.retract(|event| *event == 1, || ());
    }
    queue.push(u32::MAX);
    waiter.join().unwrap();
}
