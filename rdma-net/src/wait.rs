//! Sockets: which have changed, and how one starts to connect.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use rdma::{Error, Result, Verb};

/// An epoll that tells which of many sockets have become readable, writable or closed.
pub(crate) struct ReadySet {
    epoll: Epoll,
}

impl ReadySet {
    /// Events that one [`take`](Self::take) returns.
    const BATCH: usize = 64;

    pub(crate) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        Ok(Self { epoll })
    }

    /// Adds a socket until it is closed. [`take`](Self::take) returns its token after each change.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> Result<()> {
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(socket, EpollEvent::new(events, token)).map_err(failed("epoll_ctl"))
    }

    /// Removes a socket, which stays open.
    pub(crate) fn remove(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.epoll.delete(socket).map_err(failed("epoll_ctl"))
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
pub(crate) type Spare = EventFd;

pub(crate) fn spare_descriptor() -> Result<Spare> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(failed("eventfd2"))
}

/// Makes the error of a system call.
fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::of_call(Verb::WatchDescriptor, call, errno as i32)
}
