//! TCP sockets, which forked children close.
//!
//! Reads and writes never block, whatever the mode of the descriptor, which another process may
//! have passed to this one. The functions with a deadline wait in poll(2).
//!
//! Reads and writes are system calls without the functions of libc, which are cancellation points:
//! those change the thread's state twice in each call, and the thread would have to be kept from a
//! cancellation ([`NoCancellation`]). Both cost atomic operations for each message.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, Backlog, Shutdown, SockFlag, SockaddrStorage, sockopt};

use super::private::Private;
use super::socket::kernel_socket;
use super::thread::NoCancellation;
use super::{Error, Named, Result};
use crate::engine::limits::MAX_SGE;
use crate::engine::{Gather, Target};

/// Milliseconds without an acknowledgement after which the peer counts as dead, unless its host
/// answers and its process does not read ([`Tcp::waits_for_peer`]).
const USER_TIMEOUT: u32 = 10_000;
/// The kernel's times of acknowledgements are as exact as this, in milliseconds.
const COARSE: u128 = 50;
/// Unanswered questions whether a peer reads again after which its host counts as dead. The kernel
/// asks more and more rarely.
const MAX_PROBES: u8 = 3;
/// Seconds of silence after which the kernel asks an idle peer whether it lives, and between two
/// such questions. [`USER_TIMEOUT`] ends them.
const KEEP_IDLE: u32 = 4;
const KEEP_INTERVAL: u32 = 2;

/// Limit of the pieces of one call: a frame that waits in two pieces, a head, and the entries of a
/// request.
const MAX_PARTS: usize = 3 + MAX_SGE;

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct Tcp(Private);

/// This side's knowledge of a peer that has not taken all that was sent.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Bytes that the peer had acknowledged at the last look.
    acked: u64,
    /// The last look at which these were more than before, or the first one.
    moved: Option<Instant>,
    /// The peer's host has answered that its process does not read: no time is limited.
    is_unlimited: bool,
}

/// The kernel's `tcp_info`, as far as it is needed (`linux/tcp.h`).
#[repr(C)]
#[derive(Debug, Default)]
struct Info {
    _states: [u8; 3],
    /// Questions for a window that were not answered.
    probes: u8,
    _options: [u8; 4],
    /// Microseconds until the next retransmission.
    rto: u32,
    _sizes: [u32; 3],
    /// Segments that were sent and not acknowledged.
    unacked: u32,
    _counts: [u32; 7],
    /// Milliseconds since the last acknowledgement.
    last_ack_recv: u32,
    _path: [u32; 11],
    _rates: [u64; 2],
    bytes_acked: u64,
}

impl Tcp {
    fn new(address: SocketAddr) -> Result<Self> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let make = || kernel_socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).named("socket");
        Private::make(make).map(Self)
    }

    /// Takes over a descriptor that another process has passed. `ENOTSOCK` or `EPROTOTYPE` for one
    /// that is no TCP socket.
    pub(crate) fn of_fd(fd: OwnedFd) -> Result<Self> {
        let this = Self::passed(fd)?;
        let is_stream = socket::getsockopt(&this.0, sockopt::SockType).named("getsockopt")? == socket::SockType::Stream;
        if is_stream && this.peer().is_ok() {
            return Ok(this);
        }
        Err(Error { call: "the check of a connection", errno: Errno::EPROTOTYPE })
    }

    /// A descriptor that another process has passed, no call of which waits, however it was made.
    fn passed(fd: OwnedFd) -> Result<Self> {
        let this = Private::make(|| Ok(fd)).map(Self)?;
        fcntl(&this.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).named("fcntl")?;
        Ok(this)
    }

    /// Takes over a descriptor that another process has passed. `EPROTOTYPE` for one that is no TCP
    /// socket that listens.
    pub(crate) fn of_listener(fd: OwnedFd) -> Result<Self> {
        let this = Self::passed(fd)?;
        let is_stream = socket::getsockopt(&this.0, sockopt::SockType).named("getsockopt")? == socket::SockType::Stream;
        if is_stream && this.local().is_ok() && socket::getsockopt(&this.0, sockopt::AcceptConn) == Ok(true) {
            return Ok(this);
        }
        Err(Error { call: "the check of a listening socket", errno: Errno::EPROTOTYPE })
    }

    /// Makes two connected sockets, of the family AF_UNIX.
    #[cfg(test)]
    pub(crate) fn pair() -> [Self; 2] {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let pair = socket::socketpair(socket::AddressFamily::Unix, socket::SockType::Stream, None, flags).unwrap();
        [pair.0, pair.1].map(|fd| Self(Private::make(|| Ok(fd)).unwrap()))
    }

    /// Listens at an address; `EADDRINUSE` if another socket does.
    pub(crate) fn listen(address: SocketAddr) -> Result<Self> {
        let this = Self::new(address)?;
        // Connections that have ended may still have the address.
        socket::setsockopt(&this.0, sockopt::ReuseAddr, &true).named("setsockopt")?;
        socket::bind(this.raw(), &SockaddrStorage::from(address)).named("bind")?;
        socket::listen(&this.0, Backlog::MAXCONN).named("listen")?;
        Ok(this)
    }

    /// Whether a socket listens at an address of this host. Binds the address for a moment to find
    /// out.
    pub(crate) fn is_taken(address: SocketAddr) -> bool {
        let bind = |socket: Self| {
            // So that only sockets that listen count.
            socket::setsockopt(&socket.0, sockopt::ReuseAddr, &true).named("setsockopt")?;
            socket::bind(socket.raw(), &SockaddrStorage::from(address)).named("bind")
        };
        let bound = Self::new(address).and_then(bind);
        matches!(bound, Err(Error { errno: Errno::EADDRINUSE, .. }))
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

    /// Connects from an address of this host, by `deadline`; `ETIMEDOUT` after that.
    pub(crate) fn connect(from: IpAddr, to: SocketAddr, deadline: Instant) -> Result<Self> {
        let this = Self::new(to)?;
        // Spares ports where many hosts are called; without it, connections work all the same.
        let _spared: nix::Result<()> = socket::setsockopt(&this.0, sockopt::IpBindAddressNoPort, &true);
        socket::bind(this.raw(), &SockaddrStorage::from(SocketAddr::new(from, 0))).named("bind")?;
        match socket::connect(this.raw(), &SockaddrStorage::from(to)) {
            Err(Errno::EINPROGRESS) => {}
            connected => return connected.named("connect").map(|()| this),
        }
        this.wait(PollFlags::POLLOUT, deadline)?;
        match socket::getsockopt(&this.0, sockopt::SocketError).named("getsockopt")? {
            0 => Ok(this),
            errno => Err(Error { call: "connect", errno: Errno::from_raw(errno) }),
        }
    }

    /// Sends small frames at once, and notices within 10 s that the other host has died.
    pub(crate) fn prepare_for_frames(&self) -> Result<()> {
        socket::setsockopt(&self.0, sockopt::TcpNoDelay, &true).named("setsockopt")?;
        socket::setsockopt(&self.0, sockopt::TcpUserTimeout, &USER_TIMEOUT).named("setsockopt")?;
        socket::setsockopt(&self.0, sockopt::TcpKeepIdle, &KEEP_IDLE).named("setsockopt")?;
        socket::setsockopt(&self.0, sockopt::TcpKeepInterval, &KEEP_INTERVAL).named("setsockopt")?;
        socket::setsockopt(&self.0, sockopt::KeepAlive, &true).named("setsockopt")
    }

    /// The address of the other side.
    pub(crate) fn peer(&self) -> Result<SocketAddr> {
        address(&socket::getpeername(self.raw()).named("getpeername")?)
    }

    /// The address of this side.
    pub(crate) fn local(&self) -> Result<SocketAddr> {
        address(&socket::getsockname(self.raw()).named("getsockname")?)
    }

    /// Reads bytes that have arrived: 0 at the end of the connection, `EAGAIN` if there are none.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize> {
        let (flags, nobody) = (libc::MSG_DONTWAIT, core::ptr::null_mut::<libc::c_void>());
        // SAFETY: recvfrom(2) requires an open descriptor, which `self` owns, as many bytes to
        // write to as `bytes` has, and null in place of an address that is not asked for.
        let read = unsafe {
            libc::syscall(libc::SYS_recvfrom, self.raw(), bytes.as_mut_ptr(), bytes.len(), flags, nobody, nobody)
        };
        usize::try_from(read).map_err(|_| Error { call: "recv", errno: Errno::last() })
    }

    /// Sends bytes of two slices in their order, as many as the kernel takes; `EAGAIN` for none.
    pub(crate) fn write(&self, bytes: [&[u8]; 2]) -> Result<usize> {
        let [first, second] = bytes;
        if !second.is_empty() {
            return self.write_from(bytes, &[], &Gather::EMPTY);
        }
        let (flags, nobody) = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT, core::ptr::null::<libc::c_void>());
        // SAFETY: sendto(2) requires an open descriptor, which `self` owns, as many bytes to read
        // as `first` has, and no address for a connection.
        let sent =
            unsafe { libc::syscall(libc::SYS_sendto, self.raw(), first.as_ptr(), first.len(), flags, nobody, 0) };
        usize::try_from(sent).map_err(|_| Error { call: "send", errno: Errno::last() })
    }

    /// Sends the bytes of two slices, a head and a payload in their order, as many as the kernel
    /// takes; `EAGAIN` for none. The payload may change meanwhile. `EFAULT` if the payload begins
    /// with memory that is no longer mapped, and nothing is in front of it.
    pub(crate) fn write_from(&self, waiting: [&[u8]; 2], head: &[u8], payload: &Gather<'_>) -> Result<usize> {
        let mut parts = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; MAX_PARTS];
        let slices = waiting.into_iter().chain([head]).map(|bytes| (bytes.as_ptr(), bytes.len()));
        let sources = payload.parts().iter().map(|source| (source.as_ptr(), source.len()));
        // SAFETY: `zeroed` requires that zeros are a value: an `msghdr` is pointers and numbers.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        // Parts without a place are not sent, as if the kernel had not taken them.
        let pieces = slices.chain(sources).filter(|(_, len)| *len != 0);
        for (place, (ptr, len)) in parts.iter_mut().zip(pieces) {
            *place = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len };
            message.msg_iovlen += 1;
        }
        message.msg_iov = parts.as_mut_ptr();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: sendmsg(2) requires an open descriptor, which `self` owns, and a good message: it
        // has no name and no control data, and as many entries of the local array as were set. They
        // name bytes that the kernel reads during the call: the slices are borrowed, and a `Source`
        // is readable for its lifetime, also while others write (invariant 1 of
        // `engine/memory.rs`).
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, self.raw(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| Error { call: "sendmsg", errno: Errno::last() })
    }

    /// Reads bytes that have arrived to the target, and those behind them to the slice: as many as
    /// both have, 0 at the end of the connection. `EAGAIN` if there are none; `EFAULT` if the
    /// target begins with memory that is not mapped. Other threads may access the target meanwhile.
    pub(crate) fn read_to(&self, target: Target<'_>, behind: &mut [u8]) -> Result<usize> {
        let mut parts = [
            libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() },
            libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
        ];
        // SAFETY: `zeroed` requires that zeros are a value: an `msghdr` is pointers and numbers.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        // SAFETY: recvmsg(2) requires an open descriptor, which `self` owns, and a good message: it
        // has no name and no control data, and the two entries of the local array. They name bytes
        // that the kernel writes during the call: a `Target` is writable for its lifetime, also
        // while others access it (invariant 1 of `engine/memory.rs`), and the slice is borrowed.
        let read = unsafe { libc::syscall(libc::SYS_recvmsg, self.raw(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(read).map_err(|_| Error { call: "recvmsg", errno: Errno::last() })
    }

    /// Whether a read and whether a write would do more than fail with `EAGAIN`.
    pub(crate) fn look(&self) -> (bool, bool) {
        let _guard = NoCancellation::new();
        let mut asked = [PollFd::new(self.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
        // A read or a write tells of a failure.
        let found = poll(&mut asked, PollTimeout::ZERO).ok().and_then(|_| asked[0].revents());
        let ended = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        found.map_or((true, true), |found| {
            (found.intersects(PollFlags::POLLIN | ended), found.intersects(PollFlags::POLLOUT | ended))
        })
    }

    /// Whether the peer's kernel has yet to take bytes that were sent. Called every second or so
    /// while it has.
    ///
    /// The kernel ends a connection after [`USER_TIMEOUT`] also if the peer's kernel answers all
    /// the time that there is no window. So this function takes the limit off while the peer's
    /// host answers and its process does not read, and back on when the process reads again.
    /// `ETIMEDOUT` if the host has stopped answering meanwhile.
    pub(crate) fn waits_for_peer(&self, patience: &mut Patience) -> Result<bool> {
        if self.is_acknowledged() {
            patience.moved = None;
            self.limit_silence(patience, true)?;
            return Ok(false);
        }
        let info = self.info()?;
        let is_stuck = core::mem::replace(&mut patience.acked, info.bytes_acked) == info.bytes_acked;
        let moved = *patience.moved.get_or_insert_with(Instant::now);
        if !is_stuck {
            patience.moved = Some(Instant::now());
            self.limit_silence(patience, true)?;
        } else if !patience.is_unlimited {
            // An answer that takes no bytes has come since. Earlier ones may be of a host that has
            // died meanwhile.
            let has_answered = u128::from(info.last_ack_recv) + COARSE < moved.elapsed().as_millis();
            let answers = info.unacked == 0 || has_answered;
            if answers && info.probes == 0 {
                self.limit_silence(patience, false)?;
            }
        } else {
            // Segments that the peer's kernel had no memory for are sent again at growing times.
            let limit = USER_TIMEOUT.saturating_add(info.rto / 1_000);
            let is_silent = info.unacked != 0 && info.last_ack_recv > limit;
            if info.probes >= MAX_PROBES || is_silent {
                return Err(Error { call: "the wait for a peer that does not read", errno: Errno::ETIMEDOUT });
            }
        }
        Ok(true)
    }

    fn limit_silence(&self, patience: &mut Patience, is_limited: bool) -> Result<()> {
        if patience.is_unlimited != is_limited {
            return Ok(());
        }
        let limit = if is_limited { USER_TIMEOUT } else { 0 };
        socket::setsockopt(&self.0, sockopt::TcpUserTimeout, &limit).named("setsockopt")?;
        patience.is_unlimited = !is_limited;
        Ok(())
    }

    fn info(&self) -> Result<Info> {
        let mut info = Info::default();
        let mut len = libc::socklen_t::try_from(size_of::<Info>()).unwrap_or(0);
        // SAFETY: getsockopt requires an open descriptor, which `self` owns, and `len` writable
        // bytes: `info` is as long and takes any bytes, since its fields are numbers. An older
        // kernel writes fewer.
        let asked = unsafe {
            libc::getsockopt(self.raw(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
        };
        if asked == 0 { Ok(info) } else { Err(Error { call: "getsockopt", errno: Errno::last() }) }
    }

    /// Whether the peer's kernel has acknowledged all bytes that were sent.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let mut unsent: libc::c_int = 0;
        // SAFETY: SIOCOUTQ requires a valid `int` to write to: `unsent`. It takes any descriptor.
        let asked = unsafe { libc::ioctl(self.raw(), libc::TIOCOUTQ, &raw mut unsent) };
        asked != 0 || unsent == 0
    }

    /// Fills `bytes` by `deadline`; `ETIMEDOUT` after that, `ECONNRESET` at the end of the
    /// connection.
    pub(crate) fn read_exact(&self, bytes: &mut [u8], deadline: Instant) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read(&mut bytes[filled..]) {
                Ok(0) => return Err(Error { call: "recv", errno: Errno::ECONNRESET }),
                Ok(count) => filled += count,
                Err(Error { errno: Errno::EAGAIN, .. }) => self.wait(PollFlags::POLLIN, deadline)?,
                Err(Error { errno: Errno::EINTR, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all bytes by `deadline`; `ETIMEDOUT` after that.
    pub(crate) fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> Result<()> {
        while !bytes.is_empty() {
            match self.write([bytes, &[]]) {
                Ok(count) => bytes = &bytes[count..],
                Err(Error { errno: Errno::EAGAIN, .. }) => self.wait(PollFlags::POLLOUT, deadline)?,
                Err(Error { errno: Errno::EINTR, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the connection, also for threads that wait for it.
    pub(crate) fn shut_down(&self) {
        // Fails if the connection has ended already.
        let _ended: nix::Result<()> = socket::shutdown(self.raw(), Shutdown::Both);
    }

    /// Ends the half of the connection in which this side sends.
    pub(crate) fn shut_down_writing(&self) {
        // Fails if the connection has ended already.
        let _ended: nix::Result<()> = socket::shutdown(self.raw(), Shutdown::Write);
    }

    /// Waits for events until `deadline`; `ETIMEDOUT` after that.
    fn wait(&self, events: PollFlags, deadline: Instant) -> Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: a wait of less than a millisecond would spin.
            let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.as_fd(), events)], timeout) {
                Ok(0) if left.is_zero() => return Err(Error { call: "poll", errno: Errno::ETIMEDOUT }),
                Ok(0) | Err(Errno::EINTR) => {}
                ready => return ready.named("poll").map(drop),
            }
        }
    }

    fn raw(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The IP address in C form. `EAFNOSUPPORT` for another family.
fn address(storage: &SockaddrStorage) -> Result<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    let v6 = storage.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())));
    v4.or(v6).ok_or(Error { call: "getsockname", errno: Errno::EAFNOSUPPORT })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn bytes_arrive() {
        let listener = Tcp::listen(SocketAddr::new(LOCALHOST, 0)).unwrap();
        let address = listener.local().unwrap();
        assert!(Tcp::is_taken(address));
        assert_eq!(Tcp::listen(address).unwrap_err().errno, Errno::EADDRINUSE);
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));
        let ours = Tcp::connect(from, address, soon()).unwrap();
        ours.prepare_for_frames().unwrap();
        let theirs = loop {
            match listener.accept() {
                Err(Error { errno: Errno::EAGAIN, .. }) => std::thread::yield_now(),
                accepted => break accepted.unwrap(),
            }
        };
        assert_eq!((theirs.peer().unwrap().ip(), ours.peer().unwrap()), (from, address));
        let mut bytes = [0; 5];
        assert_eq!(theirs.read(&mut bytes).unwrap_err().errno, Errno::EAGAIN);
        assert_eq!(ours.write([b"he", b"llo"]), Ok(5));
        theirs.read_exact(&mut bytes, soon()).unwrap();
        assert_eq!(&bytes, b"hello");
        ours.shut_down();
        assert_eq!(theirs.read_exact(&mut bytes, soon()).unwrap_err().errno, Errno::ECONNRESET);
    }

    #[test]
    fn nobody_at_an_address_is_refused_at_once_and_silence_ends() {
        let listener = Tcp::listen(SocketAddr::new(LOCALHOST, 0)).unwrap();
        let address = listener.local().unwrap();
        // A child that another test forks may have a copy of the descriptor for a moment.
        listener.shut_down();
        drop(listener);
        assert_eq!(Tcp::connect(LOCALHOST, address, soon()).unwrap_err().errno, Errno::ECONNREFUSED);
        let [ours, _theirs] = Tcp::pair();
        let deadline = Instant::now() + Duration::from_millis(2);
        assert_eq!(ours.read_exact(&mut [0], deadline).unwrap_err().errno, Errno::ETIMEDOUT);
    }

    #[test]
    fn other_descriptors_are_no_connections() {
        let refused = |fd: OwnedFd| Tcp::of_fd(fd).is_err();
        assert!(refused(nix::unistd::pipe().unwrap().0));
        assert!(refused(std::fs::File::open("/dev/null").unwrap().into()));
        assert!(refused(std::os::unix::net::UnixStream::pair().unwrap().0.into()));
        assert!(refused(std::net::UdpSocket::bind((LOCALHOST, 0)).unwrap().into()));
        let listener = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(Tcp::of_fd(stream.into()).is_ok());
        assert!(refused(listener.into()));
    }
}
