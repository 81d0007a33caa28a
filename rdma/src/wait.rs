//! Waiting for a descriptor, with a deadline, and lending it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::{Error, Operation, Result};

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

/// The descriptor by which a C object announces events, with the epoll that is lent in its place.
///
/// The object's own descriptor is never lent: made blocking, or filled, it would stop whoever waits
/// for or announces an event, under locks that the whole process needs.
pub(crate) struct EventDescriptor {
    own: RawFd,
    lent: OwnedFd,
}

impl EventDescriptor {
    /// Makes the object's descriptor non-blocking: waiting is done by poll(2), with a deadline.
    ///
    /// # Safety
    ///
    /// `own` stays open until the value has been used for the last time.
    pub(crate) unsafe fn new(own: RawFd) -> Result<Self> {
        // SAFETY: epoll_create1 has no conditions.
        let lent = done(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: OwnedFd::from_raw_fd wants a descriptor that is nobody else's: just made.
        let lent = unsafe { OwnedFd::from_raw_fd(lent) };
        // SAFETY: fcntl with F_GETFL takes any number; a bad descriptor is an error.
        let flags = done(unsafe { libc::fcntl(own, libc::F_GETFL) })?;
        // SAFETY: fcntl with F_SETFL takes any number and flags.
        done(unsafe { libc::fcntl(own, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
        #[allow(clippy::cast_sign_loss, reason = "a flag")]
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: epoll_ctl wants two descriptors and an event that lives during the call.
        done(unsafe { libc::epoll_ctl(lent.as_raw_fd(), libc::EPOLL_CTL_ADD, own, &raw mut event) })?;
        Ok(Self { own, lent })
    }

    /// The object's own descriptor, to wait on inside of this crate.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        // SAFETY: BorrowedFd::borrow_raw wants it open while `self` is borrowed: promised to `new`.
        unsafe { BorrowedFd::borrow_raw(self.own) }
    }

    /// What `take` finds, waiting for it until the deadline.
    pub(crate) fn next<T>(
        &self,
        operation: Operation,
        deadline: Deadline,
        take: impl Fn() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        loop {
            if let Some(event) = take()? {
                return Ok(Some(event));
            }
            let ready = readable(self.own(), deadline).map_err(|error| Error::from_io(operation, &error))?;
            // Readable does not mean that there is an event for us: others may take it, or the
            // descriptor be broken.
            if !ready || deadline.is_over() {
                return take();
            }
        }
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lent.as_fd()
    }
}

/// The result of a system call that returns -1 and sets `errno` where it fails.
fn done(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::last(Operation::WatchDescriptor)) } else { Ok(result) }
}

/// A new semaphore to wait on: as often as it was [posted](post), it can be [taken](take).
pub(crate) fn semaphore() -> Result<OwnedFd> {
    // SAFETY: eventfd has no conditions.
    let fd = done(unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: OwnedFd::from_raw_fd wants a descriptor that is nobody else's: just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a [`semaphore`] readable `count` times.
pub(crate) fn post(semaphore: BorrowedFd<'_>, count: u64) {
    // SAFETY: eventfd_write has no conditions; an error (a full counter) leaves the semaphore
    // readable.
    let _full = unsafe { libc::eventfd_write(semaphore.as_raw_fd(), count) };
}

/// Takes a [`semaphore`] once, if it can be.
pub(crate) fn take(semaphore: BorrowedFd<'_>) {
    let mut value = 0;
    // SAFETY: eventfd_read wants room for the value.
    let _empty = unsafe { libc::eventfd_read(semaphore.as_raw_fd(), &raw mut value) };
}

/// Waits until `fd` is readable; false at the deadline. Interruptions by signals do not end the
/// wait.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<bool> {
    any_readable([Some(fd)], deadline)
}

/// Waits until one of the descriptors is readable; false at the deadline.
pub(crate) fn any_readable<const N: usize>(fds: [Option<BorrowedFd<'_>>; N], deadline: Deadline) -> io::Result<bool> {
    // The kernel skips negative descriptors.
    let fds = fds.map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd()));
    loop {
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let left = deadline.left().map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: ppoll wants as many pollfds as it is told of, a timespec or NULL, and a signal
        // mask or NULL; all live during the call.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, timeout, ptr::null()) };
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
