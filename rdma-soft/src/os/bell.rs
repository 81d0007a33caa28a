//! Bells: descriptors by which one process wakes another, without trust between the two.
//!
//! A bell is a semaphore `eventfd` with a count that does not run out. Reading it takes 1 from the
//! count and tells the threads that wait for the descriptor to become *writable*. So a ring is a
//! read; the process that is rung neither reads nor writes, and watches for edges. Unlike a write,
//! a read of an eventfd can be asked not to block (`RWF_NOWAIT`) whatever the mode of the
//! descriptor, which both processes share and may change.
//!
//! A process that spoils the count, or passes on another kind of descriptor, is not woken or is
//! woken too often; it cannot block a ring.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Named, Result};

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

    /// The bell of a peer, which may be any descriptor.
    pub(crate) fn of_peer(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Rings; never blocks. False if the descriptor is not a bell, the bell is spoilt, or the
    /// kernel cannot ring it (before Linux 5.8).
    pub(crate) fn ring(&self) -> bool {
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
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        let bell = Bell::of_peer(bell.into());
        assert!(!bell.ring(), "its count is 0, and it is blocking");
        let (pipe, _end) = nix::unistd::pipe().unwrap();
        assert!(!Bell::of_peer(pipe).ring());
    }

    #[test]
    fn the_mode_of_the_descriptor_does_not_matter() {
        let bell = Bell::new().unwrap();
        assert!(bell.ring());
        fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        assert!(bell.ring());
    }
}
