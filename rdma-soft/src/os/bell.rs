//! Bells: descriptors by which one process wakes another, without trust between the two.
//!
//! A bell is a semaphore `eventfd` with a count that does not run out. Reading it takes 1 from the
//! count and tells the threads that wait for the descriptor to become *writable*. So a ring is a
//! read; the process that is rung neither reads nor writes, and watches for edges. Unlike a write,
//! a read of an eventfd can be asked not to block (`RWF_NOWAIT`) whatever the mode of the
//! descriptor, which both processes share and may change.
//!
//! A process that spoils the count is not woken or is woken too often; it cannot block a ring.
//! Other kinds of descriptor could, by the locks that the kernel takes for a read or a close of
//! them, and are refused.
//!
//! Before Linux 5.8, and with a spoilt bell, a packet on the link's socket wakes the peer instead
//! (`link/peer.rs`).

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::fstat;

use super::thread::NoCancellation;
use super::{Error, Named, Result};

/// Rings in a bell's count: 2^62, more than can be made.
const RINGS: u64 = 1 << 62;

/// A bell. Two processes hold its descriptor: one rings, one is rung.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// Makes a bell.
    pub(crate) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        let bell = EventFd::from_flags(flags).named("eventfd2")?;
        bell.write(RINGS).named("write")?;
        Ok(Self(bell.into()))
    }

    /// The bell of a peer. Fails with EBADF for a descriptor that is no eventfd; call this where a
    /// close may block.
    pub(crate) fn of_peer(&self, fd: OwnedFd) -> Result<Self> {
        // The kernel's anonymous files share an inode, and /proc tells them apart. Without /proc,
        // the others that remain have short reads that fail at once.
        let (ours, theirs) = (fstat(self.0.as_fd()).named("fstat")?, fstat(fd.as_fd()).named("fstat")?);
        let is_anonymous = (ours.st_dev, ours.st_ino, ours.st_mode) == (theirs.st_dev, theirs.st_ino, theirs.st_mode);
        let kind = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if is_anonymous && kind.map_or(true, |kind| kind.as_os_str() == "anon_inode:[eventfd]") {
            return Ok(Self(fd));
        }
        Err(Error { call: "the check of the peer's bell", errno: Errno::EBADF })
    }

    /// A bell that cannot be rung.
    #[cfg(test)]
    pub(crate) fn spoilt() -> Self {
        Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap().into())
    }

    /// Rings; never blocks. False if the bell is spoilt, or the kernel cannot ring it (before Linux
    /// 5.8).
    pub(crate) fn ring(&self) -> bool {
        let _guard = NoCancellation::new();
        let mut count = 0_u64;
        let buffer = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: `preadv2` requires an open descriptor and valid iovecs: `buffer` is the only one,
        // and its 8 bytes are those of `count`.
        let read = unsafe { libc::preadv2(self.0.as_raw_fd(), &raw const buffer, 1, -1, libc::RWF_NOWAIT) };
        usize::try_from(read) == Ok(size_of::<u64>())
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    #[test]
    fn a_spoilt_bell_does_not_block() {
        let bell = Bell::new().unwrap().of_peer(Bell::spoilt().0).unwrap();
        assert!(!bell.ring(), "its count is 0, and it is blocking");
    }

    #[test]
    fn other_descriptors_are_no_bells() {
        let ours = Bell::new().unwrap();
        let refused = |fd: OwnedFd| ours.of_peer(fd).is_err_and(|error| error.errno == Errno::EBADF);
        let (pipe, _end) = nix::unistd::pipe().unwrap();
        assert!(refused(pipe));
        assert!(refused(fs::File::open("/dev/null").unwrap().into()));
        assert!(refused(fs::File::open(std::env::current_exe().unwrap()).unwrap().into()));
        assert!(refused(std::os::unix::net::UnixStream::pair().unwrap().0.into()));
        assert!(refused(nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap().0));
        assert!(ours.of_peer(Bell::new().unwrap().0).unwrap().ring());
    }

    #[test]
    fn the_mode_of_the_descriptor_does_not_matter() {
        let bell = Bell::new().unwrap();
        assert!(bell.ring());
        fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        assert!(bell.ring());
    }
}
