//! What the agent sleeps on.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::engine::LinkId;

/// What woke the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A peer, or a thread of this process, rang.
    Bell,
    /// The alarm went off.
    Timer,
    /// A peer connects to one of our slots.
    Listener(u32),
    /// A link's socket has a packet, or hung up.
    Socket {
        /// Which link.
        link: LinkId,
        /// Which of those that had this number.
        generation: u32,
    },
    /// A link's peer has died.
    Death {
        /// Which link.
        link: LinkId,
        /// Which of those that had this number.
        generation: u32,
    },
}

impl Source {
    /// Kind 4 bits, link or index 28 bits, generation 32 bits.
    fn encode(self) -> u64 {
        let (kind, index, generation) = match self {
            Self::Bell => (0, 0, 0),
            Self::Timer => (1, 0, 0),
            Self::Listener(index) => (2, index, 0),
            Self::Socket { link, generation } => (3, link.0, generation),
            Self::Death { link, generation } => (4, link.0, generation),
        };
        kind << 60 | u64::from(index & 0x0fff_ffff) << 32 | u64::from(generation)
    }

    #[expect(clippy::cast_possible_truncation, reason = "fields of 28 and 32 bits")]
    fn decode(code: u64) -> Self {
        let (index, generation) = ((code >> 32) as u32 & 0x0fff_ffff, code as u32);
        match code >> 60 {
            0 => Self::Bell,
            1 => Self::Timer,
            2 => Self::Listener(index),
            3 => Self::Socket { link: LinkId(index), generation },
            _ => Self::Death { link: LinkId(index), generation },
        }
    }
}

/// An epoll instance.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 has no conditions.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: epoll_create1 just returned it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a descriptor for input. `flags`: `EPOLLET`, `EPOLLONESHOT`.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, source: Source, flags: libc::c_int) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, source, flags)
    }

    /// Watches a descriptor again after `EPOLLONESHOT`.
    pub(super) fn rearm(&self, fd: BorrowedFd<'_>, source: Source, flags: libc::c_int) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, source, flags)
    }

    /// Another handle of the same instance.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Stops watching a descriptor. Closing is not enough: a forked child may have it as well.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // One that is not watched needs no removal.
        let _not_watched: io::Result<()> = self.control(libc::EPOLL_CTL_DEL, fd, Source::Bell, 0);
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        source: Source,
        flags: libc::c_int,
    ) -> io::Result<()> {
        let events = (libc::EPOLLIN | flags) as u32;
        let mut event = libc::epoll_event { events, u64: source.encode() };
        // SAFETY: epoll_ctl reads one event from a live one.
        let result = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits, `timeout` milliseconds at most (-1: for ever), and hands out what happened.
    pub(super) fn wait(&self, timeout: libc::c_int, mut handle: impl FnMut(Source)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: epoll_wait writes at most 32 events into a live array.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 32, timeout) };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            handle(Source::decode(event.u64));
        }
    }
}

/// Empties an eventfd or a timerfd.
pub(super) fn drain(fd: BorrowedFd<'_>) {
    let mut count = [0_u8; 8];
    // SAFETY: read writes at most 8 bytes into a live array.
    let _ = unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sources_come_back_as_they_went_in() {
        for source in [
            Source::Bell,
            Source::Timer,
            Source::Listener(7),
            Source::Socket { link: LinkId(0x0fff_ffff), generation: u32::MAX },
            Source::Death { link: LinkId(3), generation: 9 },
        ] {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }
}
