//! Waiting for a descriptor, with a deadline.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
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
