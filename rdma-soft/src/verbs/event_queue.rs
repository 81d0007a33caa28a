//! A queue of events behind a descriptor that behaves as the kernel's event files do: it is
//! readable for `poll`, `select` and `epoll` exactly while events wait, edge-triggered `epoll`
//! fires once per event, and `O_NONBLOCK` set by `fcntl` is obeyed.
//!
//! The descriptor is an `eventfd` in semaphore mode that counts the queue's entries, so all of the
//! above is the kernel's own behaviour. Invariants:
//!
//! 1. An entry is queued before the counter is raised, and taken only by who has lowered the
//!    counter: the queue never holds fewer entries than the counter says, but for what
//!    [`EventQueue::retract`] could not take back, and for what the application itself wrote to the
//!    descriptor or read from it, which it should not.
//! 2. The descriptor is owned by the queue and open as long as the queue exists.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::os::{self, Named};

/// How often the descriptor may say that there is an event where there is none. Retracted events
/// that it still counts are few.
const FUTILE: u32 = 1 << 16;

/// Events, and the descriptor that tells of them.
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

    /// Adds an event, if `admit` (which runs under the queue's lock) says so, and wakes one waiter.
    pub(crate) fn offer(&self, event: T, admit: impl FnOnce(&T) -> bool) {
        let mut entries = self.lock();
        if !admit(&event) {
            return;
        }
        entries.push_back(event);
        drop(entries);
        let one = 1_u64;
        // SAFETY: `one` is valid for reads of its 8 bytes; invariant 2. It waits, or fails, only if
        // somebody else wrote to the descriptor: 2^64 - 2 events then seem to wait already.
        let _written = unsafe { libc::write(self.fd.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }

    /// Takes the oldest event, waiting for one if the descriptor blocks; `take` runs under the
    /// queue's lock, so that a [`EventQueue::retract`] comes wholly before it or wholly after it.
    pub(crate) fn wait<R>(&self, take: impl FnOnce(T) -> R) -> io::Result<R> {
        for _ in 0..FUTILE {
            let mut count = 0_u64;
            // SAFETY: `count` is valid for writes of its 8 bytes; invariant 2.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), ptr::from_mut(&mut count).cast(), size_of::<u64>()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut entries = self.lock();
            // Empty: the event was retracted after this thread had lowered the counter for it.
            if let Some(event) = entries.pop_front() {
                return Ok(take(event));
            }
        }
        // Somebody wrote to the descriptor: it may take 2^64 reads until it is right again.
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Removes the events that match. `seal` runs under the queue's lock, after the removal.
    pub(crate) fn retract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> R {
        self.extract(matches, seal).1
    }

    /// As [`EventQueue::retract`], and returns what was removed, in order.
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

    /// Lowers the counter by one without ever waiting, whatever the descriptor's mode. If a waiter
    /// was faster, or the kernel cannot (before 5.8), the counter stays one too high: a wait then
    /// finds no entry and goes on.
    fn lower(&self) {
        let mut count = 0_u64;
        let buffer = libc::iovec { iov_base: ptr::from_mut(&mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: one iovec, which is valid for writes of its 8 bytes; invariant 2.
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
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready == 1 && poll.revents & libc::POLLIN != 0
    }

    fn set_nonblocking(fd: RawFd) {
        // SAFETY: F_GETFL takes no argument.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: F_SETFL takes an int.
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
        // SAFETY: F_GETFD takes no argument.
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
        // SAFETY: no requirement.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        // SAFETY: `epoll` is open and nobody else's.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let flags = libc::EPOLLIN | libc::EPOLLET;
        let mut interest = libc::epoll_event { events: flags as u32, u64: 0 };
        // SAFETY: both descriptors are open, the event is valid.
        let added =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, queue.raw_fd(), &raw mut interest) };
        assert_eq!(added, 0);
        let fired = || {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
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
