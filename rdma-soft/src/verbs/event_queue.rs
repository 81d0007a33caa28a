//! A queue of events with a file descriptor that behaves like the kernel's event files: the
//! descriptor is readable for `poll`, `select` and `epoll` exactly while events are queued,
//! edge-triggered `epoll` fires once per event, and `O_NONBLOCK` set by `fcntl` is obeyed.
//!
//! The descriptor is an `eventfd` in semaphore mode that counts the queue's entries, so the kernel
//! itself provides this behaviour. Invariants:
//!
//! 1. A thread queues an entry before it raises the counter, and takes an entry only after it has
//!    lowered the counter. So the counter never exceeds the number of entries, with two exceptions:
//!    counts that [`EventQueue::retract`] failed to lower, and counts that the application added by
//!    writing to the descriptor. An application must neither write to the descriptor nor read it: a
//!    read leaves an entry without a count.
//! 2. The descriptor is owned by the queue and open as long as the queue exists.
//! 3. An event in a [`Reception`] is not counted, and no other thread takes it. A thread opens a
//!    reception only while the queue is empty; an event that the thread has not taken when it
//!    closes the reception becomes the first entry, and is counted.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::os::thread::NoCancellation;
use crate::os::{self, Named};

/// Number of reads in `EventQueue::wait` that may find no entry before the wait gives up.
/// Retracted events that are still counted cause a few such reads; more mean that the application
/// wrote to the descriptor.
const FUTILE: u32 = 1 << 16;

/// A queue of events, and the descriptor that counts them.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    queue: VecDeque<T>,
    /// Where the thread that has opened a reception gets its event.
    reception: Option<Seat<T>>,
}

/// The state of a [`Reception`].
#[derive(Debug)]
struct Seat<T> {
    event: Option<T>,
    /// The function that wakes the thread, if the thread sleeps or is about to.
    wake: Option<fn()>,
}

/// A thread's reservation of the next event, which then costs neither a write nor a read of the
/// descriptor.
#[derive(Debug)]
pub(crate) struct Reception<'a, T>(&'a EventQueue<T>);

impl<T> Reception<'_, T> {
    /// Takes the event, if it has come.
    pub(crate) fn take<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        self.0.lock().reception.as_mut()?.event.take().map(take)
    }

    /// Whether the thread may sleep: no event has come, and `wake` will be called when one comes.
    pub(crate) fn may_sleep(&self, wake: fn()) -> bool {
        let mut entries = self.0.lock();
        let Some(seat) = &mut entries.reception else { return false };
        seat.wake = Some(wake);
        seat.event.is_none()
    }

    /// The thread is awake: it looks for the event itself.
    pub(crate) fn stay_awake(&self) {
        if let Some(seat) = &mut self.0.lock().reception {
            seat.wake = None;
        }
    }
}

impl<T> Drop for Reception<'_, T> {
    fn drop(&mut self) {
        let mut entries = self.0.lock();
        let left = entries.reception.take().and_then(|seat| seat.event);
        let Some(event) = left else { return };
        entries.queue.push_front(event);
        drop(entries);
        self.0.raise();
    }
}

/// Raises the counter for an entry: wakes a thread that sleeps on the descriptor.
impl<T: Send> Wake for EventQueue<T> {
    fn wake(self: Arc<Self>) {
        self.raise();
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> os::Result<Self> {
        let counter = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC).named("eventfd2")?;
        let entries = Entries { queue: VecDeque::new(), reception: None };
        Ok(Self { fd: counter.into(), entries: Mutex::new(entries) })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event and wakes one waiter, if `admit` returns true. `admit` runs under the queue's
    /// lock.
    pub(crate) fn offer(&self, event: T, admit: impl FnOnce(&T) -> bool) {
        if self.enqueue(event, admit) {
            self.raise();
        }
    }

    /// Adds an event, as [`EventQueue::offer`] does. True if the caller has to [raise](Self::raise)
    /// the counter, which it may do later.
    pub(crate) fn enqueue(&self, event: T, admit: impl FnOnce(&T) -> bool) -> bool {
        let mut entries = self.lock();
        if !admit(&event) {
            return false;
        }
        if let Some(seat) = entries.reception.as_mut().filter(|seat| seat.event.is_none()) {
            seat.event = Some(event);
            let wake = seat.wake.take();
            drop(entries);
            if let Some(wake) = wake {
                wake();
            }
            return false;
        }
        entries.queue.push_back(event);
        true
    }

    /// Reserves the next event for this thread. None if an event is queued, if another thread has
    /// reserved the next one, or if the descriptor is non-blocking.
    pub(crate) fn receive(&self) -> Option<Reception<'_, T>> {
        let is_busy = |entries: &Entries<T>| !entries.queue.is_empty() || entries.reception.is_some();
        if is_busy(&self.lock()) {
            return None;
        }
        // SAFETY: `fcntl` requires an open descriptor (invariant 2) and the argument that the
        // command takes: `F_GETFL` takes none.
        let flags = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_GETFL) };
        let mut entries = self.lock();
        if flags < 0 || flags & libc::O_NONBLOCK != 0 || is_busy(&entries) {
            return None;
        }
        entries.reception = Some(Seat { event: None, wake: None });
        Some(Reception(self))
    }

    /// Raises the counter for a new entry, which wakes one reader.
    fn raise(&self) {
        let _guard = NoCancellation::new();
        let one = 1_u64;
        // SAFETY: `write` requires an open descriptor (invariant 2) and as many readable bytes:
        // `one` has 8. The call blocks or fails only if the counter is at its limit of 2^64 - 2,
        // which needs the application's own writes.
        let _written = unsafe { libc::write(self.fd.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }

    /// Takes the oldest event. Waits for one unless the descriptor is non-blocking (`EAGAIN`).
    /// `take` runs under the queue's lock, so an [`EventQueue::retract`] happens wholly before or
    /// wholly after it.
    pub(crate) fn wait<R>(&self, take: impl Fn(T) -> R) -> io::Result<R> {
        let mut reads = 1;
        loop {
            let mut count = 0_u64;
            // SAFETY: `read` requires an open descriptor (invariant 2) and as many writable bytes:
            // `count` has 8.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), ptr::from_mut(&mut count).cast(), size_of::<u64>()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(taken) = self.take_after(reads, &take)? {
                return Ok(taken);
            }
            reads += 1;
        }
    }

    /// Takes the oldest event, after the caller has read the descriptor for the `reads`th time.
    /// `None` if the event was retracted meanwhile: the caller reads again.
    pub(crate) fn take_after<R>(&self, reads: u32, take: impl FnOnce(T) -> R) -> io::Result<Option<R>> {
        let mut entries = self.lock();
        let taken = entries.queue.pop_front().map(take);
        drop(entries);
        if taken.is_none() && reads >= FUTILE {
            // The application wrote to the descriptor: up to 2^64 reads could find no entry.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(taken)
    }

    /// Removes the events that match. `seal` runs under the queue's lock, after the removal.
    pub(crate) fn retract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> R {
        self.extract(matches, seal).1
    }

    /// Removes the events that match, as [`EventQueue::retract`] does, and returns them in order.
    pub(crate) fn extract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> (Vec<T>, R) {
        let mut entries = self.lock();
        let mut removed = Vec::new();
        if let Some(seat) = &mut entries.reception {
            removed.extend(seat.event.take_if(|event| matches(event)));
        }
        for event in std::mem::take(&mut entries.queue) {
            if matches(&event) {
                removed.push(event);
                self.lower();
            } else {
                entries.queue.push_back(event);
            }
        }
        // The thread whose event was removed would sleep without looking at the queue.
        let Entries { queue, reception } = &mut *entries;
        if let Some(seat) = reception.as_mut().filter(|seat| seat.event.is_none()) {
            seat.event = queue.pop_front();
            if seat.event.is_some() {
                self.lower();
            }
        }
        let sealed = seal();
        drop(entries);
        (removed, sealed)
    }

    /// Lowers the counter by one without blocking, whatever the descriptor's mode. If a waiter
    /// lowered it first, or the kernel lacks `RWF_NOWAIT` for an eventfd (before Linux 5.8), the
    /// counter stays one too high: the next wait that finds no entry reads again.
    fn lower(&self) {
        let mut count = 0_u64;
        let buffer = libc::iovec { iov_base: ptr::from_mut(&mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: `preadv2` requires an open descriptor (invariant 2) and valid iovecs: `buffer` is
        // the only one, and its 8 bytes are those of `count`.
        unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const buffer, 1, -1, libc::RWF_NOWAIT) };
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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
        let added =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, queue.raw_fd(), &raw mut interest) };
        assert_eq!(added, 0);
        let fired = || {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: `epoll_wait` requires room for as many events as its limit says: `event` is
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
}
