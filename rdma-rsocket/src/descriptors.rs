//! The functions of `rsocket.h`, on numbers of sockets.
//!
//! # Safety
//!
//! Each function has the pointers of its C namesake, and requires of them:
//!
//! 1. Buffers, options and `iovec`s are valid for their lengths: for reads where C has `const`, for
//!    writes elsewhere, and nobody else accesses them during the call. A length of 0 needs no
//!    pointer.
//! 2. Addresses to read are valid for the length beside them. For an address to write, the length
//!    beside it is valid for reads and writes, and says for how many bytes the address is. Where
//!    the manual page allows NULL, NULL is allowed.
//! 3. Structures (`msghdr`, `fd_set`, `timeval`) are valid or, where the manual page allows it,
//!    NULL.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{self, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::slice;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use libc::{c_int, c_void, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};
use nix::errno::Errno;

use crate::epoll::Epoll;
use crate::poll::{PollEntry, poll};
use crate::process::PerProcess;
use crate::settings::Settings;
use crate::socket::Socket;
use crate::verbs::Libraries;

mod epoll;

/// The most buffers of a vectored call, as for sockets.
const MAX_BUFFERS: usize = 1024;

/// The sockets of a process by their numbers, and the functions of `rsocket.h` on them.
///
/// The functions return C's results: -1 on failure, with the reason in `errno`. A forked child
/// begins without sockets.
#[derive(Debug, Default)]
pub struct Descriptors {
    sockets: PerProcess<RwLock<BTreeMap<c_int, Arc<Socket>>>>,
    /// The lists of `repoll_create`.
    lists: PerProcess<RwLock<BTreeMap<c_int, Arc<Epoll>>>>,
}

type Answer<T> = io::Result<T>;

/// C's result: -1 on failure, with the reason in `errno`.
fn answer<T: Into<i64>>(result: Answer<T>) -> i64 {
    result.map_or_else(
        |error| {
            error.raw_os_error().map_or(Errno::EIO, Errno::from_raw).set();
            -1
        },
        Into::into,
    )
}

#[allow(clippy::cast_possible_truncation, reason = "an int was converted to it")]
fn int(result: Answer<c_int>) -> c_int {
    answer(result) as c_int
}

#[allow(clippy::cast_possible_truncation, reason = "both have 64 bits")]
fn size(result: Answer<usize>) -> isize {
    answer(result.map(|count| i64::try_from(count).unwrap_or(i64::MAX))) as isize
}

fn done(result: Answer<()>) -> c_int {
    int(result.map(|()| 0))
}

impl Descriptors {
    /// No sockets.
    #[must_use]
    pub const fn new() -> Self {
        Self { sockets: PerProcess::new(), lists: PerProcess::new() }
    }

    fn find(&self, number: c_int) -> Option<Arc<Socket>> {
        self.sockets.get().read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn get(&self, number: c_int) -> Answer<Arc<Socket>> {
        self.find(number).ok_or_else(|| Errno::EBADF.into())
    }

    fn insert(&self, socket: Socket) -> c_int {
        let number = socket.number();
        // The socket is open, and so is the descriptor with its number: no other socket has it.
        self.sockets.get().write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(socket));
        number
    }

    /// `rsocket`: a new socket on the libraries.
    #[must_use]
    pub fn rsocket(&self, libraries: Libraries, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        int(Self::create(libraries, domain, kind, protocol).map(|socket| self.insert(socket)))
    }

    fn create(libraries: Libraries, domain: c_int, kind: c_int, protocol: c_int) -> Answer<Socket> {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno::EAFNOSUPPORT.into());
        }
        let mut settings = Settings::default();
        settings.is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        settings.descriptor_flags = if kind & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        match (kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Ok(Socket::new_stream(libraries, settings)?),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Ok(Socket::new_datagram(libraries, domain == libc::AF_INET6, settings)?)
            }
            _ => Err(Errno::EPROTONOSUPPORT.into()),
        }
    }

    /// `rbind`.
    ///
    /// # Safety
    ///
    /// The address is valid for its length.
    pub unsafe fn rbind(&self, socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
        // SAFETY: `address` has this function's condition.
        let address = unsafe { address(addr, addrlen) };
        done(self.get(socket).and_then(|socket| socket.bind(address?)))
    }

    /// `rlisten`.
    pub fn rlisten(&self, socket: c_int, backlog: c_int) -> c_int {
        done(self.get(socket).and_then(|socket| socket.listen(backlog)))
    }

    /// `raccept`.
    ///
    /// # Safety
    ///
    /// The address is NULL, or valid for writes of the length, which is valid.
    pub unsafe fn raccept(&self, socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        int(self.get(socket).and_then(|socket| socket.accept()).map(|(accepted, peer)| {
            // SAFETY: `put_address` has this function's condition.
            unsafe { put_address(peer, addr, addrlen) };
            self.insert(accepted)
        }))
    }

    /// `rconnect`.
    ///
    /// # Safety
    ///
    /// The address is valid for its length.
    pub unsafe fn rconnect(&self, socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
        // SAFETY: `address` has this function's condition.
        let address = unsafe { address(addr, addrlen) };
        done(self.get(socket).and_then(|socket| socket.connect(address?)))
    }

    /// `rshutdown`.
    pub fn rshutdown(&self, socket: c_int, how: c_int) -> c_int {
        let how: Answer<_> = match how {
            libc::SHUT_RD => Ok(net::Shutdown::Read),
            libc::SHUT_WR => Ok(net::Shutdown::Write),
            libc::SHUT_RDWR => Ok(net::Shutdown::Both),
            _ => Err(Errno::EINVAL.into()),
        };
        done(self.get(socket).and_then(|socket| socket.shutdown(how?)))
    }

    /// `rclose`, of a list of `repoll_create` too.
    pub fn rclose(&self, socket: c_int) -> c_int {
        if let Some(()) = self.close_list(socket) {
            return 0;
        }
        // Removed first: a close that ends the state's descriptor frees a number that it shares,
        // and another socket may get it before the close has returned.
        let removed = self.sockets.get().write().unwrap_or_else(PoisonError::into_inner).remove(&socket);
        done(removed.ok_or_else(|| Errno::EBADF.into()).and_then(|socket| socket.close()))
    }

    /// `rrecv`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for writes of the length.
    pub unsafe fn rrecv(&self, socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
        let buffers = [iovec { iov_base: buf, iov_len: len }];
        // SAFETY: `receive` requires valid buffers, by this function's condition.
        size(unsafe { self.receive(socket, &buffers, flags) }.map(|(len, _)| len))
    }

    /// `rrecvfrom`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for writes of the length. The address is NULL, or valid for writes of
    /// its length, which is valid.
    pub unsafe fn rrecvfrom(
        &self,
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        src_addr: *mut sockaddr,
        addrlen: *mut socklen_t,
    ) -> isize {
        let buffers = [iovec { iov_base: buf, iov_len: len }];
        // SAFETY: `receive` requires valid buffers, by this function's condition.
        size(unsafe { self.receive(socket, &buffers, flags) }.map(|(len, peer)| {
            if let Some(peer) = peer {
                // SAFETY: `put_address` has this function's condition.
                unsafe { put_address(peer, src_addr, addrlen) };
            }
            len
        }))
    }

    /// `rrecvmsg`.
    ///
    /// # Safety
    ///
    /// The message is valid, and its buffers are valid for writes.
    pub unsafe fn rrecvmsg(&self, socket: c_int, msg: *mut msghdr, flags: c_int) -> isize {
        // SAFETY: `message_buffers` requires a valid message, by this function's condition.
        let buffers = unsafe { message_buffers(msg) };
        // SAFETY: `receive` requires valid buffers, by this function's condition.
        size(buffers.and_then(|buffers| unsafe { self.receive(socket, buffers, flags) }).map(|(len, peer)| {
            // SAFETY: the read requires a valid message: `message_buffers` refuses NULL.
            let name = unsafe { (*msg).msg_name }.cast();
            // SAFETY: the place requires a valid message, as above.
            let name_len = unsafe { &raw mut (*msg).msg_namelen };
            if let Some(peer) = peer {
                // SAFETY: `put_address` has this function's condition for the message's name.
                unsafe { put_address(peer, name, name_len) };
            }
            len
        }))
    }

    /// `rread`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for writes of the length.
    pub unsafe fn rread(&self, socket: c_int, buf: *mut c_void, count: usize) -> isize {
        // SAFETY: `rrecv` has this function's condition.
        unsafe { self.rrecv(socket, buf, count, 0) }
    }

    /// `rreadv`.
    ///
    /// # Safety
    ///
    /// The `iovcnt` buffers are valid for writes.
    pub unsafe fn rreadv(&self, socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
        // SAFETY: `list` requires `iovcnt` valid entries, by this function's condition.
        let buffers = unsafe { list(iov, usize::try_from(iovcnt).unwrap_or(usize::MAX)) };
        // SAFETY: `receive` requires valid buffers, by this function's condition.
        size(buffers.and_then(|buffers| unsafe { self.receive(socket, buffers, 0) }).map(|(len, _)| len))
    }

    /// # Safety
    ///
    /// The buffers are valid for writes during the call, and nobody else accesses them.
    unsafe fn receive(&self, socket: c_int, buffers: &[iovec], flags: c_int) -> Answer<(usize, Option<SocketAddr>)> {
        let socket = self.get(socket)?;
        let buffers = buffers.iter().filter(|buffer| buffer.iov_len > 0);
        let mut buffers: Vec<IoSliceMut<'_>> = buffers
            .map(|buffer| {
                // SAFETY: from_raw_parts_mut requires memory that is valid for writes, exclusively,
                // by this function's condition. The bytes are written before anybody reads them.
                IoSliceMut::new(unsafe { slice::from_raw_parts_mut(buffer.iov_base.cast(), buffer.iov_len) })
            })
            .collect();
        socket.receive_from(&mut buffers, flags)
    }

    /// `rsend`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for reads of the length.
    pub unsafe fn rsend(&self, socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
        let buffers = [iovec { iov_base: buf.cast_mut(), iov_len: len }];
        // SAFETY: `send` requires valid buffers, by this function's condition.
        size(unsafe { self.send(socket, &buffers, None, flags) })
    }

    /// `rsendto`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for reads of the length. The address is NULL or valid for its length.
    pub unsafe fn rsendto(
        &self,
        socket: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        dest_addr: *const sockaddr,
        addrlen: socklen_t,
    ) -> isize {
        // SAFETY: `destination` has this function's condition.
        let to = unsafe { destination(dest_addr, addrlen) };
        let buffers = [iovec { iov_base: buf.cast_mut(), iov_len: len }];
        // SAFETY: `send` requires valid buffers, by this function's condition.
        size(to.and_then(|to| unsafe { self.send(socket, &buffers, to, flags) }))
    }

    /// `rsendmsg`. A stream ignores the name of the message.
    ///
    /// # Safety
    ///
    /// The message is valid, and its buffers are valid for reads.
    pub unsafe fn rsendmsg(&self, socket: c_int, msg: *const msghdr, flags: c_int) -> isize {
        // SAFETY: `message_buffers` requires a valid message, by this function's condition.
        let buffers = unsafe { message_buffers(msg) };
        size(buffers.and_then(|buffers| {
            // SAFETY: the reference requires a valid message: `message_buffers` refuses NULL.
            let message = unsafe { &*msg };
            let len = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
            // SAFETY: `destination` requires an address that is valid for its length, as a valid
            // message has.
            let to = unsafe { destination(message.msg_name.cast(), len) }?;
            let to = if self.get(socket)?.is_stream() { None } else { to };
            // SAFETY: `send` requires valid buffers, by this function's condition.
            unsafe { self.send(socket, buffers, to, flags) }
        }))
    }

    /// `rwrite`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for reads of the length.
    pub unsafe fn rwrite(&self, socket: c_int, buf: *const c_void, count: usize) -> isize {
        // SAFETY: `rsend` has this function's condition.
        unsafe { self.rsend(socket, buf, count, 0) }
    }

    /// `rwritev`.
    ///
    /// # Safety
    ///
    /// The `iovcnt` buffers are valid for reads.
    pub unsafe fn rwritev(&self, socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
        // SAFETY: `list` requires `iovcnt` valid entries, by this function's condition.
        let buffers = unsafe { list(iov, usize::try_from(iovcnt).unwrap_or(usize::MAX)) };
        // SAFETY: `send` requires valid buffers, by this function's condition.
        size(buffers.and_then(|buffers| unsafe { self.send(socket, buffers, None, 0) }))
    }

    /// # Safety
    ///
    /// The buffers are valid for reads during the call.
    unsafe fn send(&self, socket: c_int, buffers: &[iovec], to: Option<SocketAddr>, flags: c_int) -> Answer<usize> {
        let socket = self.get(socket)?;
        let buffers = buffers.iter().filter(|buffer| buffer.iov_len > 0);
        let buffers: Vec<IoSlice<'_>> = buffers
            .map(|buffer| {
                // SAFETY: from_raw_parts requires memory that is valid for reads, by this
                // function's condition.
                IoSlice::new(unsafe { slice::from_raw_parts(buffer.iov_base.cast(), buffer.iov_len) })
            })
            .collect();
        match to {
            Some(to) => socket.send_to(&buffers, to, flags),
            None => socket.send(&buffers, flags),
        }
    }

    /// `riomap`. Memory without `PROT_WRITE` is registered only.
    ///
    /// # Safety
    ///
    /// The memory stays valid until `riounmap` or `rclose`. With `PROT_WRITE`, the peer may write
    /// it at any time.
    pub unsafe fn riomap(
        &self,
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        _flags: c_int,
        offset: off_t,
    ) -> off_t {
        if prot & !libc::PROT_WRITE != 0 {
            return answer::<off_t>(Err(Errno::EINVAL.into()));
        }
        let is_shared = prot & libc::PROT_WRITE != 0;
        let offset = (offset != -1).then(|| u64::from_ne_bytes(offset.to_ne_bytes()));
        answer(self.get(socket).and_then(|socket| {
            // SAFETY: `map` requires memory that stays valid, this function's condition.
            let offset = unsafe { socket.map(buf.cast(), len, is_shared, offset) }?;
            Ok(off_t::from_ne_bytes(offset.to_ne_bytes()))
        }))
    }

    /// `riounmap`.
    pub fn riounmap(&self, socket: c_int, buf: *mut c_void, len: usize) -> c_int {
        done(self.get(socket).and_then(|socket| socket.unmap(buf.cast(), len)))
    }

    /// `riowrite`.
    ///
    /// # Safety
    ///
    /// The buffer is valid for reads of the length.
    pub unsafe fn riowrite(
        &self,
        socket: c_int,
        buf: *const c_void,
        count: usize,
        offset: off_t,
        flags: c_int,
    ) -> isize {
        let bytes = match count {
            0 => &[],
            // SAFETY: from_raw_parts requires readable memory, by this function's condition.
            _ => unsafe { slice::from_raw_parts(buf.cast::<u8>(), count) },
        };
        let offset = u64::from_ne_bytes(offset.to_ne_bytes());
        size(self.get(socket).and_then(|socket| socket.write_mapped(bytes, offset, flags)))
    }

    /// `rpoll`.
    ///
    /// # Safety
    ///
    /// The `nfds` entries are valid.
    pub unsafe fn rpoll(&self, fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
        let entries = match usize::try_from(nfds) {
            Ok(0) => &mut [],
            // SAFETY: from_raw_parts_mut requires `nfds` valid entries, by this function's
            // condition.
            Ok(count) => unsafe { slice::from_raw_parts_mut(fds, count) },
            Err(_) => return done(Err(Errno::EINVAL.into())),
        };
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        int(self.poll(entries, timeout))
    }

    fn poll(&self, entries: &mut [pollfd], timeout: Option<Duration>) -> Answer<c_int> {
        let sockets: Vec<Option<Arc<Socket>>> = entries.iter().map(|entry| self.find(entry.fd)).collect();
        let mut polled: Vec<PollEntry<'_>> = entries
            .iter()
            .zip(&sockets)
            .map(|(entry, socket)| match socket {
                Some(socket) => PollEntry::socket(socket, entry.events),
                None => PollEntry::descriptor(entry.fd, entry.events),
            })
            .collect();
        let count = poll(&mut polled, timeout)?;
        entries.iter_mut().zip(&polled).for_each(|(entry, polled)| entry.revents = polled.found());
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    }

    /// `rselect`. Leaves the time as it is.
    ///
    /// # Safety
    ///
    /// The sets and the time are NULL or valid.
    pub unsafe fn rselect(
        &self,
        nfds: c_int,
        readfds: *mut fd_set,
        writefds: *mut fd_set,
        exceptfds: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: as_ref requires NULL or a valid time, by this function's condition.
        let timeout = unsafe { timeout.as_ref() }.map(duration).transpose();
        let sets = [readfds, writefds, exceptfds].map(|set| {
            // SAFETY: as_mut requires NULL or a valid set, by this function's condition.
            unsafe { set.as_mut() }
        });
        int(timeout.and_then(|timeout| self.select(nfds, sets, timeout)))
    }

    fn select(&self, nfds: c_int, mut sets: [Option<&mut fd_set>; 3], timeout: Option<Duration>) -> Answer<c_int> {
        /// The events that poll reports for each of select's sets.
        const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        const FOUND: [i16; 3] =
            [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
        let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX);
        if !(0..=most).contains(&nfds) {
            return Err(Errno::EINVAL.into());
        }
        let wanted = |fd: c_int| {
            sets.iter().zip(EVENTS).fold(0, |events, (set, event)| {
                let is_set = set.as_ref().is_some_and(|set| is_set(fd, set));
                if is_set { events | event } else { events }
            })
        };
        let mut entries: Vec<pollfd> = (0..nfds)
            .map(|fd| pollfd { fd, events: wanted(fd), revents: 0 })
            .filter(|entry| entry.events != 0)
            .collect();
        self.poll(&mut entries, timeout)?;
        if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return Err(Errno::EBADF.into());
        }
        let mut count = 0;
        for ((set, event), found) in sets.iter_mut().zip(EVENTS).zip(FOUND) {
            let Some(set) = set else { continue };
            clear(set);
            for entry in entries.iter().filter(|entry| entry.events & event != 0 && entry.revents & found != 0) {
                insert(entry.fd, set);
                count += 1;
            }
        }
        Ok(count)
    }

    /// `rgetpeername`.
    ///
    /// # Safety
    ///
    /// The address is valid for writes of the length, which is valid.
    pub unsafe fn rgetpeername(&self, socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        // SAFETY: `put_address` has this function's condition.
        done(self.get(socket).and_then(|socket| socket.peer_address()).map(|peer| unsafe {
            put_address(peer, addr, addrlen);
        }))
    }

    /// `rgetsockname`.
    ///
    /// # Safety
    ///
    /// The address is valid for writes of the length, which is valid.
    pub unsafe fn rgetsockname(&self, socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        done(self.get(socket).and_then(|socket| socket.local_address()).map(|local| {
            // Linux, too, returns the wildcard address for a socket that is not bound.
            let local = local.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
            // SAFETY: `put_address` has this function's condition.
            unsafe { put_address(local, addr, addrlen) };
        }))
    }

    /// `rsetsockopt`.
    ///
    /// # Safety
    ///
    /// The value is valid for reads of the length.
    pub unsafe fn rsetsockopt(
        &self,
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: socklen_t,
    ) -> c_int {
        let value = match usize::try_from(optlen) {
            Ok(len) if len > 0 && !optval.is_null() => {
                // SAFETY: from_raw_parts requires `optlen` readable bytes, by this function's
                // condition.
                unsafe { slice::from_raw_parts(optval.cast::<u8>(), len) }
            }
            _ => &[],
        };
        done(self.get(socket).and_then(|socket| socket.set_option(level, optname, value)))
    }

    /// `rgetsockopt`.
    ///
    /// # Safety
    ///
    /// The value is valid for writes of the length, which is valid.
    pub unsafe fn rgetsockopt(
        &self,
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut socklen_t,
    ) -> c_int {
        done(self.get(socket).and_then(|socket| socket.option(level, optname)).map(|value| {
            // SAFETY: `put` has this function's condition. Longer values are cut off, as by
            // sockets.
            let len = unsafe { put(&value, optval.cast(), optlen) };
            // SAFETY: the write requires a valid length, by this function's condition.
            unsafe { *optlen = len };
        }))
    }

    /// `rfcntl`: `F_GETFL`, `F_SETFL` (of which `O_NONBLOCK` has an effect), `F_GETFD`, `F_SETFD`.
    pub fn rfcntl(&self, socket: c_int, cmd: c_int, arg: c_int) -> c_int {
        int(self.get(socket).and_then(|socket| match cmd {
            libc::F_GETFL => Ok(libc::O_RDWR | if socket.is_nonblocking()? { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => socket.set_nonblocking(arg & libc::O_NONBLOCK != 0).map(|()| 0),
            libc::F_GETFD => Ok(socket.descriptor_flags(None)?),
            libc::F_SETFD => Ok(socket.descriptor_flags(Some(arg)).map(|_| 0)?),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }))
    }
}

/// Reads an address that may be missing.
///
/// # Safety
///
/// The address is NULL with the length 0, or valid for reads of `len` bytes.
unsafe fn destination(addr: *const sockaddr, len: socklen_t) -> Answer<Option<SocketAddr>> {
    if addr.is_null() && len == 0 {
        return Ok(None);
    }
    // SAFETY: `address` has this function's condition.
    unsafe { address(addr, len) }.map(Some)
}

/// Reads an address.
///
/// # Safety
///
/// The address is valid for reads of `len` bytes.
unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Answer<SocketAddr> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if addr.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL.into());
    }
    // SAFETY: the read requires a family, whose size was checked.
    let family = c_int::from(unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() });
    match family {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the read requires an IPv4 address, whose size was checked.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Ok(SocketAddr::from((v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the read requires an IPv6 address, whose size was checked.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::EINVAL.into()),
        _ => Err(Errno::EAFNOSUPPORT.into()),
    }
}

/// Writes an address, cut off at the length, and its whole length.
///
/// # Safety
///
/// The address is NULL, or valid for writes of the length, which is valid.
unsafe fn put_address(address: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) {
    use nix::sys::socket::{SockaddrLike, SockaddrStorage};
    if addr.is_null() || len.is_null() {
        return;
    }
    let address = SockaddrStorage::from(address);
    let whole = address.len();
    // SAFETY: from_raw_parts requires `whole` readable bytes: the address has its length.
    let bytes = unsafe { slice::from_raw_parts(address.as_ptr().cast::<u8>(), usize::try_from(whole).unwrap_or(0)) };
    // SAFETY: `put` has this function's condition.
    unsafe { put(bytes, addr.cast(), len) };
    // SAFETY: the write requires a valid length, by this function's condition.
    unsafe { *len = whole };
}

/// Writes bytes, cut off at the length. Returns the number of written bytes.
///
/// # Safety
///
/// `to` is valid for writes of `*len` bytes, and `len` is valid.
unsafe fn put(bytes: &[u8], to: *mut u8, len: *const socklen_t) -> socklen_t {
    // SAFETY: the read requires a valid length, by this function's condition.
    let room = usize::try_from(unsafe { *len }).unwrap_or(0);
    let count = room.min(bytes.len());
    // SAFETY: copy_nonoverlapping requires that both are valid for `count` bytes, which neither
    // exceeds, and disjoint: `bytes` is memory of ours.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
    socklen_t::try_from(count).unwrap_or(socklen_t::MAX)
}

/// The buffers of a message without ancillary data.
///
/// # Safety
///
/// The message and its list of buffers are valid for reads during `'a`.
unsafe fn message_buffers<'a>(msg: *const msghdr) -> Answer<&'a [iovec]> {
    // SAFETY: as_ref requires NULL or a valid message, by this function's condition.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::EFAULT)?;
    if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    // The length's type depends on the C library.
    // SAFETY: `list` requires a valid list, by this function's condition.
    unsafe { list(msg.msg_iov, msg.msg_iovlen as _) }
}

/// A list of buffers.
///
/// # Safety
///
/// The `count` entries are valid for reads during `'a`.
unsafe fn list<'a>(iov: *const iovec, count: usize) -> Answer<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        // SAFETY: from_raw_parts requires `count` valid entries, by this function's condition.
        1..=MAX_BUFFERS => Ok(unsafe { slice::from_raw_parts(iov, count) }),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn duration(time: &timeval) -> Answer<Duration> {
    let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
    let (seconds, micros) = seconds.ok().zip(micros.ok()).ok_or(Errno::EINVAL)?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

fn is_set(fd: c_int, set: &fd_set) -> bool {
    // SAFETY: FD_ISSET requires a descriptor below FD_SETSIZE, which `select` has checked.
    unsafe { libc::FD_ISSET(fd, set) }
}

fn insert(fd: c_int, set: &mut fd_set) {
    // SAFETY: FD_SET requires a descriptor below FD_SETSIZE, which `select` has checked.
    unsafe { libc::FD_SET(fd, set) };
}

fn clear(set: &mut fd_set) {
    // SAFETY: FD_ZERO requires a valid set.
    unsafe { libc::FD_ZERO(set) };
}
