//! Numbers of sockets, as `rsocket.h` has them.
//!
//! librspreload opens a descriptor for the program, and then makes the rsocket that it stands for.
//! `select` of librspreload 44 reports a ready rsocket under the lowest number that stands for it,
//! and a number for which there is no rsocket stands for itself. So if the rsocket has a lower
//! number than the program's descriptor, the program never hears of it: `select` returns at once,
//! with a number that the program does not know. The lower number comes from a thread that closes a
//! descriptor between the two steps.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// The least number of a socket, if the process may have so many descriptors: more than most
/// programs have, and in the first half of what an `fd_set` holds.
const FIRST: RawFd = 512;

/// The number of a socket. No other socket and no other file has it as long as its descriptor is
/// open.
#[derive(Debug)]
pub(crate) enum Number {
    /// A descriptor of the number's own, open as long as this value exists.
    Own(OwnedFd),
    /// A descriptor of the socket's state, open until the socket closes.
    Shared(RawFd),
}

impl Number {
    /// A number for a socket whose state owns `fd`, for the same file if it can.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        duplicate(fd).map_or(Self::Shared(fd.as_raw_fd()), Self::Own)
    }

    pub(crate) fn get(&self) -> RawFd {
        match self {
            Self::Own(fd) => fd.as_raw_fd(),
            Self::Shared(fd) => *fd,
        }
    }
}

/// Duplicates a descriptor to a number from [`FIRST`] on. Fails if the process may not have such a
/// number, or has no more.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let duplicate = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(FIRST))?;
    // SAFETY: from_raw_fd requires an open descriptor that nothing else owns: fcntl has made it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// Makes a UDP socket by a system call: with librspreload, `socket` of libc makes an rsocket, and
/// the rsocket would need another UDP socket.
pub(crate) fn udp_socket(is_v4: bool) -> Result<OwnedFd, Errno> {
    let family = if is_v4 { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) has no requirement.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) })?;
    let fd = c_int::try_from(fd).map_err(|_| Errno::EMFILE)?;
    // SAFETY: from_raw_fd requires an open descriptor that nothing else owns: socket(2) has made
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_number_is_high_and_owned() {
        let socket = udp_socket(true).unwrap();
        assert!(socket.as_raw_fd() < FIRST);
        let (one, other) = (Number::of(socket.as_fd()), Number::of(socket.as_fd()));
        assert!(one.get() >= FIRST && other.get() >= FIRST && one.get() != other.get());
    }
}
