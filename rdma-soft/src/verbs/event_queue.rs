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

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::os::{self, Named};

/// Number of reads in `EventQueue::wait` that may find no entry before the wait gives up.
/// Retracted events that are still counted cause a few such reads; more mean that the application
/// wrote to the descriptor.
const FUTILE: u32 = 1 << 16;

/// A queue of events, and the descriptor that counts them.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    entries: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> os::Result<Self> {
        let counter = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC).named("eventfd2")?;
        Ok(Self { fd: counter.into(), entries: Mutex::default() })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event and wakes one waiter, if `admit` returns true. `admit` runs under the queue's
    /// lock.
    pub(crate) fn offer(&self, event: T, admit: impl FnOnce(&T) -> bool) {
        let mut entries = self.lock();
        if !admit(&event) {
            return;
        }
        entries.push_back(event);
        drop(entries);
        let one = 1_u64;
        // SAFETY: `write` requires an open descriptor (invariant 2) and as many readable bytes:
        // `one` has 8. The call blocks or fails only if the counter is at its limit of 2^64 - 2,
        // which needs the application's own writes.
        let _written = unsafe { libc::write(self.fd.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }

    /// Takes the oldest event. Waits for one unless the descriptor is non-blocking (`EAGAIN`).
    /// `take` runs under the queue's lock, so an [`EventQueue::retract`] happens wholly before or
    /// wholly after it.
    pub(crate) fn wait<R>(&self, take: impl FnOnce(T) -> R) -> io::Result<R> {
        for _ in 0..FUTILE {
            let mut count = 0_u64;
            // SAFETY: `read` requires an open descriptor (invariant 2) and as many writable bytes:
            // `count` has 8.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), ptr::from_mut(&mut count).cast(), size_of::<u64>()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut entries = self.lock();
            // The queue is empty if the event was retracted after this thread had lowered the
            // counter.
            if let Some(event) = entries.pop_front() {
                return Ok(take(event));
            }
        }
        // The application wrote to the descriptor: up to 2^64 reads could find no entry.
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Removes the events that match. `seal` runs under the queue's lock, after the removal.
    pub(crate) fn retract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> R {
        self.extract(matches, seal).1
    }

    /// Removes the events that match, as [`EventQueue::retract`] does, and returns them in order.
    pub(crate) fn extract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> (Vec<T>, R) {
        let mut entries = self.lock();
        let mut removed = Vec::new();
        for event in std::mem::take(&mut *entries) {
            if matches(&event) {
                removed.push(event);
                self.lower();
            } else {
                entries.push_back(event);
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

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::sync::Arc;
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
