//! Event loops: a thread sleeps until a descriptor is readable, an alarm goes off or another thread
//! wakes it.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::thread::NoCancellation;
use super::{Named, Result};
use crate::engine::Time;

/// Limit of the events that one wait reports.
const BATCH: usize = 32;
/// Tokens of the loop's own descriptors, which callers must not use.
const WAKER: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

/// An event loop. One thread waits; any thread may call the other methods.
#[derive(Debug)]
pub(crate) struct EventLoop {
    epoll: Epoll,
    waker: EventFd,
    alarm: TimerFd,
}

impl EventLoop {
    /// Makes a loop that watches no descriptors yet.
    pub(crate) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).named("epoll_create1")?;
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).named("eventfd2")?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let alarm = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).named("timerfd_create")?;
        // Nobody would learn of a refusal later, when an alarm is lost.
        alarm.unset().named("timerfd_settime")?;
        let this = Self { epoll, waker, alarm };
        this.add(&this.waker, WAKER, EpollFlags::empty())?;
        this.add(&this.alarm, ALARM, EpollFlags::empty())?;
        Ok(this)
    }

    /// Reports `token` whenever a descriptor is readable.
    pub(crate) fn watch(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        self.add(fd, token, EpollFlags::empty())
    }

    /// Reports `token` for a descriptor as `flags` say, which are epoll's.
    pub(super) fn watch_edges(&self, fd: &impl AsFd, flags: EpollFlags, token: u64) -> Result<()> {
        self.epoll.add(fd, EpollEvent::new(flags, token)).named("epoll_ctl")
    }

    /// Reports `token` when a descriptor that other processes watch, too, is readable: to one of
    /// those that wait. A process that stands still or is busy is passed over.
    pub(crate) fn watch_shared(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        self.add(fd, token, EpollFlags::EPOLLEXCLUSIVE)
    }

    /// Reports `token` once when a descriptor is readable; see [`rearm`](Self::rearm).
    pub(crate) fn watch_once(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        self.add(fd, token, EpollFlags::EPOLLONESHOT)
    }

    /// Reports `token` once more for a descriptor watched by [`watch_once`](Self::watch_once).
    pub(crate) fn rearm(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, token);
        self.epoll.modify(fd, &mut event).named("epoll_ctl")
    }

    /// Stops watching a descriptor. Called before the descriptor is closed, because a forked child
    /// that has not run yet may hold a copy, which would keep the registration alive.
    pub(crate) fn forget(&self, fd: &impl AsFd) {
        // Removal of an unwatched descriptor fails, which is harmless.
        let _not_watched: nix::Result<()> = self.epoll.delete(fd);
    }

    /// Ends the current or the next wait.
    pub(crate) fn wake(&self) {
        // The write fails if the counter is full, and a full counter wakes the waiting thread as
        // well.
        let _guard = NoCancellation::new();
        let _full: nix::Result<usize> = self.waker.write(1);
    }

    /// Ends a wait at time `at`; replaces an earlier alarm.
    pub(crate) fn set_alarm(&self, at: Time) {
        // A zero time would disarm the timer.
        let expiration = Expiration::OneShot(TimeSpec::from(Duration::from_nanos(at.0.max(1))));
        let set = self.alarm.set(expiration, TimerSetTimeFlags::TFD_TIMER_ABSTIME);
        debug_assert!(set.is_ok(), "a time that cannot be");
    }

    /// Waits, and reports the tokens of readable descriptors. Returns early after an alarm,
    /// [`wake`](Self::wake) or a signal.
    pub(crate) fn wait(&self, timeout: Option<Duration>, mut ready: impl FnMut(u64)) {
        let timeout =
            timeout.map_or(EpollTimeout::NONE, |time| EpollTimeout::try_from(time).unwrap_or(EpollTimeout::MAX));
        let mut events = [EpollEvent::empty(); BATCH];
        let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        for event in &events[..count] {
            match event.data() {
                WAKER => drop(self.waker.read()),
                ALARM => drop(self.alarm.wait()),
                token => ready(token),
            }
        }
    }

    /// Sleeps for `time`, or until [`wake`](Self::wake): no other descriptor ends this sleep. The
    /// next wait reports what has come meanwhile.
    pub(crate) fn nap(&self, time: Duration) {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        // A signal ends the sleep early, and the caller looks around.
        let _early: nix::Result<i32> = poll(&mut [PollFd::new(self.waker.as_fd(), PollFlags::POLLIN)], timeout);
    }

    fn add(&self, fd: &impl AsFd, token: u64, how: EpollFlags) -> Result<()> {
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | how, token)).named("epoll_ctl")
    }
}
