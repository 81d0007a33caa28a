//! Unix sockets of sequenced packets with abstract names.
//!
//! The kernel gives a name to one socket of a network namespace, and frees the name with the last
//! copy of the socket's descriptor; a shutdown does not free the name. Forked children close their
//! copies. Only [`Socket::wait_readable`] blocks.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::c_int;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, Backlog, ControlMessage, MsgFlags, SockFlag, UnixAddr, sockopt};
use rdma_mem::pass;

use super::private::Private;
use super::process::{self, Credentials};
use super::{Error, Named, Result};

/// Longer packets are cut off and reported as [`Received::TooLong`].
pub(crate) const MAX_PACKET: usize = 512;
/// Limit of the descriptors in one packet.
pub(crate) const MAX_FDS: usize = 4;

/// A non-blocking `SOCK_SEQPACKET` socket that forked children close.
#[derive(Debug)]
pub(crate) struct Socket(Private);

/// The result of a receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet.
    Packet(Packet),
    /// A packet longer than [`MAX_PACKET`].
    TooLong,
    /// The peer has closed its end, or sent an empty packet.
    End,
}

/// A packet of at least one byte.
#[derive(Debug)]
pub(crate) struct Packet {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// The descriptors that came with the packet; empty if some did not fit into this process.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Makes a socket of a family and a type by a system call: with a library that is preloaded for
/// rsockets (librspreload), `socket` of libc makes an rsocket, which is made of this device again.
pub(crate) fn kernel_socket(family: c_int, kind: c_int) -> nix::Result<OwnedFd> {
    // SAFETY: socket(2) has no requirement.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_socket, family, kind | libc::SOCK_CLOEXEC, 0) })?;
    let fd = c_int::try_from(fd).map_err(|_| Errno::EMFILE)?;
    // SAFETY: `from_raw_fd` requires an open descriptor that nothing else owns: socket(2) has made
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Socket {
    /// Makes a socket without a name.
    pub(crate) fn new() -> Result<Self> {
        let make = || kernel_socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).named("socket");
        Private::make(make).map(Self)
    }

    /// Makes two connected sockets.
    #[cfg(test)]
    pub(crate) fn pair() -> [Self; 2] {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) =
            socket::socketpair(socket::AddressFamily::Unix, socket::SockType::SeqPacket, None, flags).unwrap();
        [one, other].map(|fd| Self(Private::make(|| Ok(fd)).unwrap()))
    }

    /// Binds the socket to a name; `EADDRINUSE` if another socket has the name.
    pub(crate) fn bind(&self, name: &str) -> Result<()> {
        socket::bind(self.raw(), &address(name)?).named("bind")
    }

    /// Starts to accept connections.
    pub(crate) fn listen(&self) -> Result<()> {
        socket::listen(&self.0, Backlog::MAXCONN).named("listen")
    }

    /// Connects to the socket that listens under a name. `ECONNREFUSED` if no socket listens there,
    /// `EAGAIN` if too many connections are pending there.
    pub(crate) fn connect(&self, name: &str) -> Result<()> {
        socket::connect(self.raw(), &address(name)?).named("connect")
    }

    /// Accepts a pending connection; `EAGAIN` if there is none.
    pub(crate) fn accept(&self) -> Result<Self> {
        let accept = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let fd = socket::accept4(self.raw(), flags).named("accept4")?;
            // SAFETY: from_raw_fd requires an open descriptor that has no other owner: accept4 has
            // just made this one.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        Private::make(accept).map(Self)
    }

    /// The process at the other side: the process that connected or listened.
    pub(crate) fn peer(&self) -> Result<Credentials> {
        let peer = socket::getsockopt(&self.0, sockopt::PeerCredentials).named("getsockopt")?;
        Ok(Credentials { pid: peer.pid(), uid: peer.uid() })
    }

    /// A descriptor that becomes readable when the process at the other side dies. `pid` is that
    /// process's id, for kernels that cannot make the descriptor from the socket.
    pub(crate) fn peer_pidfd(&self, pid: i32) -> Result<OwnedFd> {
        match socket::getsockopt(&self.0, sockopt::PeerPidfd) {
            // Linux before 6.5 lacks SO_PEERPIDFD.
            Err(Errno::ENOPROTOOPT) => process::open_pidfd(pid),
            pidfd => pidfd.named("getsockopt"),
        }
    }

    /// The name that the other side is bound to, if it has one.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let address: UnixAddr = socket::getpeername(self.raw()).ok()?;
        String::from_utf8(address.as_abstract()?.to_vec()).ok()
    }

    /// Sends a whole packet; `EAGAIN` if the other side's queue is full.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        socket::send(self.raw(), packet, flags).named("send").map(drop)
    }

    /// Sends a packet with descriptors.
    pub(crate) fn send_with(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[] } else { &control[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = socket::sendmsg::<()>(self.raw(), &[IoSlice::new(packet)], control, flags, None);
        sent.named("sendmsg").map(drop)
    }

    /// Waits until a packet or the peer's hang-up can be received; `EAGAIN` after `time`. A signal
    /// restarts the wait with the full time.
    pub(crate) fn wait_readable(&self, time: Duration) -> Result<()> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        loop {
            match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) => return Err(Error { call: "poll", errno: Errno::EAGAIN }),
                Err(Errno::EINTR) => {}
                ready => return ready.named("poll").map(drop),
            }
        }
    }

    /// Receives a packet and drops any descriptors that come with it; `EAGAIN` if there is none.
    pub(crate) fn receive(&self) -> Result<Received> {
        self.receive_with(0)
    }

    /// Receives a packet and at most [`MAX_FDS`] descriptors; `EAGAIN` if there is no packet.
    pub(crate) fn receive_with_fds(&self) -> Result<Received> {
        self.receive_with(MAX_FDS)
    }

    fn receive_with(&self, fds: usize) -> Result<Received> {
        let mut bytes = [0; MAX_PACKET];
        let received = pass::receive_some(self.as_fd(), &mut bytes, fds, true).named("recvmsg")?;
        Ok(match received.len {
            0 => Received::End,
            _ if received.is_cut => Received::TooLong,
            len => {
                // The peer sent too many descriptors, or this process has reached its limit.
                let fds = if received.lacks_fds { Vec::new() } else { received.fds };
                Received::Packet(Packet { bytes: bytes[..len].to_vec(), fds })
            }
        })
    }

    fn raw(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn address(name: &str) -> Result<UnixAddr> {
    UnixAddr::new_abstract(name.as_bytes()).named("bind")
}

/// Whether a socket has a name. Binds the name for a moment to find out.
pub(crate) fn is_taken(name: &str) -> Result<bool> {
    match Socket::new()?.bind(name) {
        Ok(()) => Ok(false),
        Err(Error { errno: Errno::EADDRINUSE, .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The abstract names in this network namespace that begin with `prefix`, from the kernel's list:
/// about 2 us for each socket of the host. Sockets that were accepted under a name are listed with
/// that name, so a name in the list may be free.
pub(crate) fn names(prefix: &str) -> io::Result<Vec<String>> {
    Ok(names_in(&std::fs::read("/proc/self/net/unix")?, prefix))
}

/// The names in the kernel's list without duplicates. Names of other programs may hold any bytes.
fn names_in(table: &[u8], prefix: &str) -> Vec<String> {
    let name = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'@')?;
        let name = line[at + 1..].strip_prefix(prefix.as_bytes()).map(|_| &line[at + 1..])?;
        String::from_utf8(name.to_vec()).ok()
    };
    let mut names: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests;
