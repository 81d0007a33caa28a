//! Waiting for a descriptor, with a deadline.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

/// When to give up; never, if there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// After this time; a time too long to be counted is for ever.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Whether it has come.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// This one, or after so long if that is sooner.
    pub(crate) fn sooner(self, timeout: Duration) -> Self {
        let Self(Some(other)) = Self::after(Some(timeout)) else { return self };
        Self(Some(self.0.map_or(other, |at| at.min(other))))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// A new epoll, to be watched in place of a descriptor that must not be lent.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: epoll_create1 has no conditions.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the epoll readable while `fd` is.
pub(crate) fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    #[allow(clippy::cast_sign_loss, reason = "a flag")]
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: epoll_ctl wants two descriptors and an event that lives during the call.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until `fd` is readable; false at the deadline. Interruptions by signals do not end the wait.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<bool> {
    loop {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let left = deadline.left().map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: ppoll wants one pollfd, a timespec or NULL, and a signal mask or NULL; all live during the call.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, timeout, ptr::null()) };
        match ready {
            0 => return Ok(false),
            1.. => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
