//! Waits for descriptors: what a driver sleeps on, and sockets that have changed.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use rdma::{Error, Result, Verb};

/// The time at which a wait ends without success; without one, the wait has no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline `timeout` from now. Without a timeout, or if the sum overflows, the deadline
    /// never passes.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    fn left(self) -> Option<TimeSpec> {
        self.0.map(|at| TimeSpec::from_duration(at.saturating_duration_since(Instant::now())))
    }
}

/// An epoll that is readable while one of several descriptors is readable, once a time has come, or
/// after [`ring`](Self::ring).
pub(crate) struct Watch {
    epoll: Epoll,
    timer: TimerFd,
    bell: EventFd,
}

impl Watch {
    /// Watches the descriptors until they are closed.
    pub(crate) fn new(fds: &[BorrowedFd<'_>]) -> Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK);
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let (timer, bell) = (timer.map_err(failed("timerfd_create"))?, bell.map_err(failed("eventfd2"))?);
        let this = Self { epoll: epoll()?, timer, bell };
        for fd in fds.iter().copied().chain([this.timer.as_fd(), this.bell.as_fd()]) {
            watch(&this.epoll, fd)?;
        }
        Ok(this)
    }

    /// Makes the epoll readable until [`clear`](Self::clear).
    pub(crate) fn ring(&self) {
        // The only error, a full counter, leaves the bell readable.
        let _full = self.bell.write(1);
    }

    /// Takes what [`ring`](Self::ring) and an expired timer have left.
    pub(crate) fn clear(&self) {
        let _empty = self.bell.read();
        self.set_timer(None);
    }

    /// Makes the epoll readable after a time, or not at all.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        // Errors leave the timer as it was.
        let _result = match after {
            // A time of zero would stop the timer, and the seconds must fit into C's type.
            Some(after) => {
                let after = after.clamp(Duration::from_nanos(1), Duration::from_secs(u32::MAX.into()));
                let expiration = Expiration::OneShot(TimeSpec::from_duration(after));
                self.timer.set(expiration, TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// An epoll that tells which of many sockets have become readable, writable or closed.
pub(crate) struct ReadySet {
    epoll: Epoll,
}

impl ReadySet {
    /// Events that one [`take`](Self::take) returns.
    const BATCH: usize = 64;

    pub(crate) fn new() -> Result<Self> {
        Ok(Self { epoll: epoll()? })
    }

    /// Adds a socket until it is closed. [`take`](Self::take) returns its token after each change.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> Result<()> {
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(socket, EpollEvent::new(events, token)).map_err(failed("epoll_ctl"))
    }

    /// The tokens of some sockets that have changed; none if no socket has.
    pub(crate) fn take(&self) -> Result<Vec<u64>> {
        let mut events = [EpollEvent::empty(); Self::BATCH];
        match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => Ok(events.iter().take(count).map(EpollEvent::data).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(failed("epoll_wait")(errno)),
        }
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Starts to connect a non-blocking TCP socket; it becomes writable once it is connected, or has
/// failed.
pub(crate) fn start_to_connect(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// A descriptor that is open for no purpose but to be closed.
pub(crate) fn spare_descriptor() -> Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(failed("eventfd2"))
}

/// Waits until `fd` is readable; returns false at the deadline. A signal does not end the wait.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
    loop {
        let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
        match ppoll(&mut polled, deadline.left(), None) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("ppoll")(errno)),
        }
    }
}

fn epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))
}

/// Makes an epoll watch whether a descriptor is readable.
fn watch(epoll: &Epoll, fd: BorrowedFd<'_>) -> Result<()> {
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed("epoll_ctl"))
}

/// Makes the error of a system call.
fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::of_call(Verb::WatchDescriptor, call, errno as i32)
}
