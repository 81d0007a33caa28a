//! The transport: abstract Unix sockets of sequenced packets, whose names are ports.
//!
//! The kernel decides who has a name, per network namespace, and frees it when its owner has closed it or died: with the last copy of
//! the descriptor, no earlier, whatever was shut down. Nothing here ever blocks.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use super::message;
use crate::link::private::Private;
use crate::link::trust::{self, Credentials};

/// Before every name. The digit is the protocol's version: other versions are other worlds.
pub(super) const PREFIX: &str = "rdma-soft-cm1/";

/// A socket, closed in forked children.
#[derive(Debug)]
pub(super) struct Socket(Private);

impl Socket {
    pub(super) fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket has no conditions.
        Private::make(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) }).map(Self)
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes a name; `EADDRINUSE` if somebody has it.
    pub(super) fn bind(&self, name: &str) -> io::Result<()> {
        let (address, len) = address(name)?;
        // SAFETY: bind reads `len` bytes, which is at most the size, of a live sockaddr_un.
        check(unsafe { libc::bind(self.raw(), (&raw const address).cast(), len) })
    }

    pub(super) fn listen(&self) -> io::Result<()> {
        // SAFETY: plain system call on an open descriptor.
        check(unsafe { libc::listen(self.raw(), libc::SOMAXCONN) })
    }

    /// Connects to who listens under a name: `ECONNREFUSED` if nobody does, `EAGAIN` if too many wait to be accepted.
    pub(super) fn connect(&self, name: &str) -> io::Result<()> {
        let (address, len) = address(name)?;
        // SAFETY: as in `bind`.
        check(unsafe { libc::connect(self.raw(), (&raw const address).cast(), len) })
    }

    /// Takes a waiting connection; `EAGAIN` if there is none.
    pub(super) fn accept(&self) -> io::Result<Self> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: accept4 may be given no address to write to. The socket does not block.
        Private::make(|| unsafe { libc::accept4(self.raw(), ptr::null_mut(), ptr::null_mut(), flags) }).map(Self)
    }

    /// The name that the peer's end is bound to, if it has one.
    pub(super) fn peer_name(&self) -> Option<String> {
        // SAFETY: `sockaddr_un` is plain data, valid when zero.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).ok()?;
        // SAFETY: getpeername writes at most `len` bytes to a live sockaddr_un.
        check(unsafe { libc::getpeername(self.raw(), (&raw mut address).cast(), &raw mut len) }).ok()?;
        let len = usize::try_from(len).ok()?.checked_sub(offset_of!(libc::sockaddr_un, sun_path))?;
        let [0, name @ ..] = address.sun_path.get(..len)? else { return None };
        String::from_utf8(name.iter().map(|&byte| byte as u8).collect()).ok()
    }

    /// Who made the peer's end.
    pub(super) fn peer(&self) -> io::Result<Credentials> {
        trust::peer_of(&self.0)
    }

    /// Sends a packet, whole or not at all.
    pub(super) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_EOR;
        // SAFETY: send reads as many bytes as the live slice has.
        let sent = unsafe { libc::send(self.raw(), packet.as_ptr().cast(), packet.len(), flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes a packet. Descriptors that come with it are not taken.
    pub(super) fn receive(&self) -> io::Result<Received> {
        let mut packet = [0; message::MAX_LEN];
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: recv writes at most as many bytes as the live array has.
        let len = unsafe { libc::recv(self.raw(), packet.as_mut_ptr().cast(), packet.len(), flags) };
        match usize::try_from(len) {
            Err(_) => Err(io::Error::last_os_error()),
            // Nobody who keeps to the protocol sends nothing.
            Ok(0) => Ok(Received::End),
            Ok(len) if len > packet.len() => Ok(Received::TooLong),
            Ok(len) => Ok(Received::Packet(packet[..len].to_vec())),
        }
    }
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Packet(Vec<u8>),
    TooLong,
    End,
}

/// Whether somebody has a name, found out by taking it for a moment.
pub(super) fn is_taken(name: &str) -> io::Result<bool> {
    match Socket::new()?.bind(name) {
        Ok(()) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(true),
        Err(error) => Err(error),
    }
}

/// All names that begin like that and that may be taken, as the kernel lists them. Sockets that were accepted under a name are
/// listed with it, so a name in the list may be free.
pub(super) fn listed(start: &str) -> Vec<String> {
    // Where it is not to be had, nothing is known, and fewer conflicts are found.
    let list = std::fs::read(String::from("/proc/net/unix")).unwrap_or_default();
    let names = String::from_utf8_lossy(&list);
    let names = names.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    let mut names: Vec<_> = names.filter(|name| name.starts_with(start)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The abstract name: a zero byte, then text.
fn address(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: `sockaddr_un` is plain data, valid when zero.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0);
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, libc::socklen_t::try_from(len).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("rdma-soft-test-{}-{test}", std::process::id())
    }

    #[test]
    fn a_name_is_one_socket_s_until_it_closes() {
        let name = name("one");
        let first = Socket::new().unwrap();
        first.bind(&name).unwrap();
        assert!(is_taken(&name).unwrap());
        assert!(listed(&name).contains(&name));
        assert_eq!(Socket::new().unwrap().bind(&name).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        // Bound is not listening.
        let other = Socket::new().unwrap();
        assert_eq!(other.connect(&name).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        drop(first);
        assert!(!is_taken(&name).unwrap());
    }

    #[test]
    fn packets_names_and_the_end() {
        let (server, client) = (name("server"), name("client"));
        let listener = Socket::new().unwrap();
        listener.bind(&server).unwrap();
        listener.listen().unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let near = Socket::new().unwrap();
        near.bind(&client).unwrap();
        near.connect(&server).unwrap();
        let far = listener.accept().unwrap();
        assert_eq!((far.peer_name(), near.peer_name()), (Some(client), Some(server)));
        assert_eq!(far.peer().unwrap().uid, trust::own_uid());
        assert_eq!(far.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.send(b"one").unwrap();
        near.send(&[7; message::MAX_LEN + 1]).unwrap();
        near.send(b"two").unwrap();
        drop(near);
        assert_eq!(far.receive().unwrap(), Received::Packet(b"one".to_vec()));
        assert_eq!(far.receive().unwrap(), Received::TooLong);
        assert_eq!(far.receive().unwrap(), Received::Packet(b"two".to_vec()));
        assert_eq!(far.receive().unwrap(), Received::End);
        assert!(far.send(b"late").is_err());
    }

    #[test]
    fn a_forked_child_does_not_keep_a_name() {
        let name = name("forked");
        let socket = Socket::new().unwrap();
        socket.bind(&name).unwrap();
        let mut gate = [0; 2];
        // SAFETY: valid for writes of two descriptors.
        assert_eq!(unsafe { libc::pipe(gate.as_mut_ptr()) }, 0);
        // SAFETY: the child does nothing but to wait for the end of the pipe, and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: closes the child's copy, so that the parent's is the last.
            unsafe { libc::close(gate[1]) };
            // SAFETY: valid for writes of a byte.
            unsafe { libc::read(gate[0], (&raw mut byte).cast(), 1) };
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(0) };
        }
        drop(socket);
        // The child may not have run yet; until then it has the name.
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while is_taken(&name).unwrap() {
            assert!(std::time::Instant::now() < patience, "the child keeps the name");
            std::thread::yield_now();
        }
        // SAFETY: an open descriptor of this test.
        unsafe { libc::close(gate[1]) };
        let mut status = 0;
        // SAFETY: a valid out parameter.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        // SAFETY: an open descriptor of this test.
        unsafe { libc::close(gate[0]) };
    }
}
