//! Bells for which a thread of the application may wait in place of an event loop's thread.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::bell::Bell;
use super::event_loop::EventLoop;
use super::thread::NoCancellation;
use super::{Named, Result};

/// Limit of the events that one wait takes.
const BATCH: usize = 8;
/// Token of the set's waker; all bells have another one.
const WAKER: u64 = u64::MAX;

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A bell rang, or [`WaitSet::wake`] was called.
    Rung,
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// A set of bells that an event loop watches too. While a thread waits for the set, a ring wakes
/// that thread alone; otherwise the loop reports it. One thread at a time may wait.
///
/// Both epoll instances watch the bell with `EPOLLEXCLUSIVE`. The kernel asks them in the order of
/// their registration, and stops at the first one in which a thread sleeps; the set is registered
/// first. So the threads take turns without a system call, and at any time one of them is told.
#[derive(Debug)]
pub(crate) struct WaitSet {
    epoll: Epoll,
    waker: EventFd,
}

impl WaitSet {
    /// Makes an empty set.
    pub(crate) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).named("epoll_create1")?;
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).named("eventfd2")?;
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER)).named("epoll_ctl")?;
        Ok(Self { epoll, waker })
    }

    /// From now on, a ring of `bell` ends a wait for the set, or the loop reports `token`.
    pub(crate) fn watch(&self, bell: &Bell, token: u64, event_loop: &EventLoop) -> Result<()> {
        self.epoll.add(bell, EpollEvent::new(edges(), 0)).named("epoll_ctl")?;
        event_loop.watch_edges(bell, edges(), token)
    }

    /// From now on, a socket that becomes readable or writable ends a wait for the set, or the loop
    /// reports `token`.
    pub(crate) fn watch_socket(&self, socket: &impl AsFd, token: u64, event_loop: &EventLoop) -> Result<()> {
        let flags = edges() | EpollFlags::EPOLLIN;
        self.epoll.add(socket, EpollEvent::new(flags, 0)).named("epoll_ctl")?;
        event_loop.watch_edges(socket, flags, token)
    }

    /// Stops watching a descriptor, as [`EventLoop::forget`] does.
    pub(crate) fn forget(&self, fd: &impl AsFd) {
        // Removal of an unwatched descriptor fails, which is harmless.
        let _not_watched: nix::Result<()> = self.epoll.delete(fd);
    }

    /// Ends the current or the next wait.
    pub(crate) fn wake(&self) {
        let _guard = NoCancellation::new();
        // The write fails if the counter is full, and a full counter wakes the waiting thread as
        // well.
        let _full: nix::Result<usize> = self.waker.write(1);
    }

    /// Waits for a ring or a [`wake`](Self::wake), without a limit or for `limit` at most. Returns
    /// at once for a ring since the last wait of which the loop was told.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Wake {
        let mut events = [EpollEvent::empty(); BATCH];
        let limit = limit.and_then(|limit| EpollTimeout::try_from(limit).ok()).unwrap_or(EpollTimeout::NONE);
        let count = match self.epoll.wait(&mut events, limit) {
            Ok(0) => return Wake::TimedOut,
            Ok(count) => count,
            Err(Errno::EINTR) => return Wake::Interrupted,
            Err(_) => return Wake::Rung,
        };
        if events[..count].iter().any(|event| event.data() == WAKER) {
            // Another wake may come first: then there is nothing to read.
            let _read: nix::Result<u64> = self.waker.read();
        }
        Wake::Rung
    }
}

/// Reports rings (see [`Bell`]) to one epoll instance at a time.
fn edges() -> EpollFlags {
    EpollFlags::EPOLLOUT | EpollFlags::EPOLLET | EpollFlags::EPOLLEXCLUSIVE
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Whether the loop reports a ring at once.
    fn is_rung(event_loop: &EventLoop) -> bool {
        let mut is_rung = false;
        event_loop.wait(Some(Duration::ZERO), |token| is_rung |= token == 7);
        is_rung
    }

    fn watched() -> (EventLoop, Arc<WaitSet>, Bell) {
        let (event_loop, set, bell) = (EventLoop::new().unwrap(), WaitSet::new().unwrap(), Bell::new().unwrap());
        set.watch(&bell, 7, &event_loop).unwrap();
        // A new registration reports the state once.
        assert!(set.wait(None) == Wake::Rung && is_rung(&event_loop));
        (event_loop, Arc::new(set), bell)
    }

    #[test]
    fn the_loop_is_told_while_no_thread_waits() {
        let (event_loop, set, bell) = watched();
        for _ in 0..3 {
            assert!(!is_rung(&event_loop));
            assert!(bell.ring());
            assert!(is_rung(&event_loop));
        }
        assert_eq!(set.wait(None), Wake::Rung, "the thread looks for itself");
        set.forget(&bell);
        event_loop.forget(&bell);
        assert!(bell.ring() && !is_rung(&event_loop));
    }

    #[test]
    fn a_thread_that_waits_is_told_instead_of_the_loop() {
        let (event_loop, set, bell) = watched();
        let waiter = std::thread::spawn({
            let set = Arc::clone(&set);
            move || set.wait(None)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(bell.ring());
        assert_eq!(waiter.join().unwrap(), Wake::Rung);
        // On a busy machine, the thread may have been late: then the loop is told too.
        let _late = is_rung(&event_loop);
        assert!(!is_rung(&event_loop));
    }

    #[test]
    fn a_wait_ends_when_it_is_woken() {
        let (event_loop, set, _bell) = watched();
        set.wake();
        assert!(set.wait(None) == Wake::Rung && !is_rung(&event_loop));
        assert_eq!(set.wait(Some(Duration::from_millis(1))), Wake::TimedOut);
    }
}
