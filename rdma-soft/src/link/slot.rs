//! Names of processes: a slot is the number of an abstract Unix socket that a process could bind. The kernel decides who
//! has it, per network namespace, and frees it when the process dies: nothing can be left behind.

use std::io;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::private::Private;
use crate::engine::Slot;
use crate::log::remark;

/// All slots. 0 is kept free, as queue pair numbers 0 and 1 are special; so is 4095, for 0xffffff.
pub(crate) const ALL: RangeInclusive<u16> = 1..=4094;

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// A slot that this process has.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its number.
    pub(crate) slot: Slot,
    /// Where peers connect; accepting does not block.
    pub(crate) socket: Private,
}

/// Takes a slot out of `range`, the first free one from `start` on.
pub(crate) fn claim(range: &RangeInclusive<u16>, start: u16) -> io::Result<Listener> {
    let (first, count) = (*range.start(), range.end() - range.start() + 1);
    for i in 0..count {
        let slot = Slot(first + (start.wrapping_add(i)) % count);
        let socket = named_socket(libc::SOCK_NONBLOCK)?;
        let (address, len) = address(slot);
        // SAFETY: bind reads `len` bytes, which is at most the size, of a live sockaddr_un.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EADDRINUSE) {
                continue;
            }
            return Err(error);
        }
        // SAFETY: plain system call on an open descriptor.
        if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        return Ok(Listener { slot, socket });
    }
    remark!(ERROR, "all {count} names for processes that use the software RDMA device are taken on this host");
    Err(io::Error::from_raw_os_error(libc::EMFILE))
}

/// Connects to the process that has a slot. Every later operation on the socket, and this one, takes at most `patience`.
pub(crate) fn connect(slot: Slot, patience: Duration) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    set_patience(&socket, patience)?;
    let (address, len) = address(slot);
    // SAFETY: connect reads `len` bytes, which is at most the size, of a live sockaddr_un.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Takes a waiting connection, if there is one; `patience` as in [`connect`].
pub(crate) fn accept(listener: &Listener, patience: Duration) -> io::Result<OwnedFd> {
    let fd = listener.socket.as_raw_fd();
    // SAFETY: accept4 may be given no address to write to.
    let fd = unsafe { libc::accept4(fd, core::ptr::null_mut(), core::ptr::null_mut(), libc::SOCK_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: accept4 just returned it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_patience(&socket, patience)?;
    Ok(socket)
}

/// A socket for a name, which no forked child keeps.
pub(super) fn named_socket(flags: libc::c_int) -> io::Result<Private> {
    // SAFETY: socket has no conditions.
    Private::make(|| unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0) })
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket has no conditions.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: socket just returned it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_patience(socket: &OwnedFd, patience: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_usec: i64::from(patience.subsec_micros()),
    };
    let len = libc::socklen_t::try_from(size_of::<libc::timeval>()).unwrap_or(0);
    for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
        // SAFETY: setsockopt reads `len` bytes of a live timeval.
        let result =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const time).cast(), len) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn address(slot: Slot) -> (libc::sockaddr_un, libc::socklen_t) {
    abstract_address(&format!("rdma-soft-{}", slot.0))
}

/// An abstract name: a zero byte, then text, of 107 bytes at most.
pub(super) fn abstract_address(text: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    let name = format!("\0{text}");
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + name.len();
    (address, libc::socklen_t::try_from(len).unwrap_or(0))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn running_out_is_an_error_and_a_dropped_slot_is_free_again() {
        // Numbers beyond the real ones, so that this meets neither devices nor other tests.
        let base = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap() * 4;
        let range = base..=base + 2;
        let mut taken: Vec<_> = (0..3).map(|start| claim(&range, start).unwrap()).collect();
        taken.sort_by_key(|listener| listener.slot);
        assert_eq!(taken.iter().map(|l| l.slot.0).collect::<Vec<_>>(), range.clone().collect::<Vec<_>>());
        assert_eq!(claim(&range, 7).unwrap_err().raw_os_error(), Some(libc::EMFILE));
        drop(taken.remove(1));
        assert_eq!(claim(&range, 0).unwrap().slot, Slot(base + 1));
    }

    #[test]
    fn nobody_at_a_slot_is_refused_at_once() {
        let error = connect(Slot(65_000), PATIENCE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    }
}
