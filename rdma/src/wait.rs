//! Waits on file descriptors with a deadline, and lends descriptors to callers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::{Error, Result, Verb};
use crate::os::{self, Epoll, EventFd};

/// The time at which a wait ends without success; without one, the wait has no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline `timeout` from now. Without a timeout, or if the sum overflows, the deadline
    /// never passes.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// The earlier of this deadline and the one `timeout` from now.
    pub(crate) fn sooner(self, timeout: Duration) -> Self {
        let Self(Some(other)) = Self::after(Some(timeout)) else { return self };
        Self(Some(self.0.map_or(other, |at| at.min(other))))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// The descriptor on which a C object announces events, and the epoll that callers get in its
/// place.
///
/// The object's own descriptor is never lent. A caller could make it blocking or fill it, and then
/// the thread that waits for or announces an event would block while it holds locks that the whole
/// process needs.
pub(crate) struct EventDescriptor {
    own: RawFd,
    lent: Epoll,
}

impl EventDescriptor {
    /// Makes the object's descriptor non-blocking, since waits use ppoll(2) with a deadline, and
    /// creates the epoll that watches it.
    ///
    /// # Safety
    ///
    /// `own` is negative, which is an error, or stays open until the value has been used for the
    /// last time.
    pub(crate) unsafe fn new(own: RawFd) -> Result<Self> {
        if own < 0 {
            return Err(failed("fcntl")(Errno::EBADF));
        }
        // SAFETY: BorrowedFd::borrow_raw requires a descriptor other than -1 that stays open while
        // the borrow lives: checked above, and the caller promises this for longer.
        let fd = unsafe { BorrowedFd::borrow_raw(own) };
        let lent = epoll()?;
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(failed("fcntl"))?);
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed("fcntl"))?;
        watch(&lent, fd)?;
        Ok(Self { own, lent })
    }

    /// The object's own descriptor; only this crate waits on it.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        // SAFETY: BorrowedFd::borrow_raw requires a descriptor other than -1 that stays open while
        // `self` is borrowed: `new` has checked the one, and its caller promises the other.
        unsafe { BorrowedFd::borrow_raw(self.own) }
    }

    /// Makes the epoll that callers get readable while another descriptor is readable, too.
    pub(crate) fn watch_too(&self, other: BorrowedFd<'_>) -> Result<()> {
        watch(&self.lent, other)
    }

    /// Waits until the deadline for `take` to return an event.
    pub(crate) fn next<T>(
        &self,
        operation: Verb,
        deadline: Deadline,
        take: impl Fn() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        loop {
            if let Some(event) = take()? {
                return Ok(Some(event));
            }
            let ready = readable(operation, self.own(), deadline)?;
            // Readable does not mean that `take` finds an event: another thread may take it first,
            // or the descriptor may be in an error state.
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

pub(crate) fn epoll() -> Result<Epoll> {
    Epoll::new().map_err(failed("epoll_create1"))
}

/// Makes an epoll watch whether a descriptor is readable.
pub(crate) fn watch(epoll: &Epoll, fd: BorrowedFd<'_>) -> Result<()> {
    epoll.watch(fd).map_err(failed("epoll_ctl"))
}

/// Makes the error of a system call.
pub(crate) fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::of_call(Verb::WatchDescriptor, call, errno as i32)
}

/// A semaphore to wait on. Each count that is posted can be taken once.
#[derive(Debug)]
pub(crate) struct Semaphore(EventFd);

impl Semaphore {
    pub(crate) fn new() -> Result<Self> {
        EventFd::semaphore().map(Self).map_err(failed("eventfd2"))
    }

    /// Adds `count`.
    pub(crate) fn post(&self, count: u64) {
        self.0.add(count);
    }

    /// Takes 1 unless the count is 0.
    pub(crate) fn take(&self) {
        self.0.take();
    }
}

impl AsFd for Semaphore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for `operation` until `fd` is readable; returns false at the deadline. A signal does not
/// end the wait.
pub(crate) fn readable(operation: Verb, fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
    any_readable(operation, [Some(fd)], deadline)
}

/// Whether `fd` is readable now.
pub(crate) fn is_readable(operation: Verb, fd: BorrowedFd<'_>) -> Result<bool> {
    readable(operation, fd, Deadline::after(Some(Duration::ZERO)))
}

/// Waits for `operation` until one of the descriptors is readable; returns false at the deadline.
pub(crate) fn any_readable<const N: usize>(
    operation: Verb,
    fds: [Option<BorrowedFd<'_>>; N],
    deadline: Deadline,
) -> Result<bool> {
    // The call skips negative descriptors.
    let fds = fds.map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd()));
    loop {
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        match os::poll(&mut polled, deadline.left()) {
            Ok(is_ready) => return Ok(is_ready),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::of_call(operation, "ppoll", errno as i32)),
        }
    }
}
