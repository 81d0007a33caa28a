//! Waits on file descriptors with a deadline, and lends descriptors to callers.

use std::io;
#[cfg(feature = "net")]
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

#[cfg(feature = "net")]
use crate::cm::RawAddr;
use crate::error::{Error, Operation, Result};

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
    lent: OwnedFd,
}

impl EventDescriptor {
    /// Makes the object's descriptor non-blocking, since waits use ppoll(2) with a deadline, and
    /// creates the epoll that watches it.
    ///
    /// # Safety
    ///
    /// `own` stays open until the value has been used for the last time.
    pub(crate) unsafe fn new(own: RawFd) -> Result<Self> {
        // SAFETY: epoll_create1 has no memory-safety requirements.
        let lent = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: fcntl with F_GETFL accepts any number; a bad descriptor is an error.
        let flags = done(unsafe { libc::fcntl(own, libc::F_GETFL) })?;
        // SAFETY: fcntl with F_SETFL accepts any number and flags.
        done(unsafe { libc::fcntl(own, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
        add_to_epoll(&lent, own)?;
        Ok(Self { own, lent })
    }

    /// The object's own descriptor; only this crate waits on it.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        // SAFETY: BorrowedFd::borrow_raw requires a descriptor that stays open while `self` is
        // borrowed: the caller of `new` promises this.
        unsafe { BorrowedFd::borrow_raw(self.own) }
    }

    /// Waits until the deadline for `take` to return an event.
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

/// An epoll that is readable while one of several descriptors is readable, once a time has come, or
/// after [`ring`](Self::ring).
#[cfg(feature = "net")]
pub(crate) struct Watch {
    epoll: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
}

#[cfg(feature = "net")]
impl Watch {
    /// Watches the descriptors until they are closed.
    pub(crate) fn new(fds: &[BorrowedFd<'_>]) -> Result<Self> {
        // SAFETY: epoll_create1 has no memory-safety requirements.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: timerfd_create has no memory-safety requirements.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        // SAFETY: eventfd has no memory-safety requirements.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let watch = Self { epoll, timer: owned(timer)?, bell: owned(bell)? };
        for fd in fds.iter().copied().chain([watch.timer.as_fd(), watch.bell.as_fd()]) {
            add_to_epoll(&watch.epoll, fd.as_raw_fd())?;
        }
        Ok(watch)
    }

    /// Makes the epoll readable until [`clear`](Self::clear).
    pub(crate) fn ring(&self) {
        post(self.bell.as_fd(), 1);
    }

    /// Takes what [`ring`](Self::ring) and an expired timer have left.
    pub(crate) fn clear(&self) {
        take(self.bell.as_fd());
        self.set_timer(None);
    }

    /// Makes the epoll readable after a time, or not at all.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        // A time of zero would stop the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(after.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let setting = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: timerfd_settime requires a setting that lives during the call, a local variable,
        // and room for the old setting or NULL. Its errors leave the timer as it was.
        let _result = unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const setting, ptr::null_mut()) };
    }
}

#[cfg(feature = "net")]
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An epoll that tells which of many sockets have become readable, writable or closed.
#[cfg(feature = "net")]
pub(crate) struct ReadySet {
    epoll: OwnedFd,
}

#[cfg(feature = "net")]
impl ReadySet {
    /// Events that one [`take`](Self::take) returns.
    const BATCH: u8 = 64;

    pub(crate) fn new() -> Result<Self> {
        // SAFETY: epoll_create1 has no memory-safety requirements.
        Ok(Self { epoll: owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })? })
    }

    /// Adds a socket until it is closed. [`take`](Self::take) returns its token after each change.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> Result<()> {
        #[allow(clippy::cast_sign_loss, reason = "flags")]
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: epoll_ctl requires an event that lives during the call: a local variable. A bad
        // descriptor is an error.
        done(unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event)
        })?;
        Ok(())
    }

    /// The tokens of some sockets that have changed; none if no socket has.
    pub(crate) fn take(&self) -> Result<Vec<u64>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; Self::BATCH as usize];
        // SAFETY: epoll_wait requires room for the given number of events: the array.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), Self::BATCH.into(), 0) };
        let count = done(count).or_else(|error| error.or_nothing().map(Option::unwrap_or_default))?;
        Ok(events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect())
    }
}

#[cfg(feature = "net")]
impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Starts to connect a non-blocking TCP socket; it becomes writable once it is connected, or has
/// failed.
#[cfg(feature = "net")]
pub(crate) fn start_to_connect(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket has no memory-safety requirements.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: OwnedFd::from_raw_fd requires a descriptor with no other owner: `socket` has just
    // created it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut address = RawAddr::new(to);
    // SAFETY: connect requires an address of the given length, which lives during the call: a local
    // variable, and the length of all of it.
    let result = unsafe { libc::connect(fd, address.as_mut_ptr(), RawAddr::LEN) };
    let error = io::Error::last_os_error();
    if result < 0 && error.raw_os_error() != Some(libc::EINPROGRESS) {
        return Err(error);
    }
    Ok(socket.into())
}

/// Takes ownership of the descriptor that a system call has just created.
fn owned(result: i32) -> Result<OwnedFd> {
    let fd = done(result)?;
    // SAFETY: OwnedFd::from_raw_fd requires a descriptor with no other owner: every caller passes
    // the result of the system call that created it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes an epoll watch whether a descriptor is readable.
fn add_to_epoll(epoll: &OwnedFd, fd: RawFd) -> Result<()> {
    #[allow(clippy::cast_sign_loss, reason = "a flag")]
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: epoll_ctl requires an event that lives during the call: a local variable. A bad
    // descriptor is an error.
    done(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
    Ok(())
}

/// Converts the result of a system call that returns -1 and sets `errno` on failure.
fn done(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::last(Operation::WatchDescriptor)) } else { Ok(result) }
}

/// Creates a semaphore to wait on. Each count that is [posted](post) can be [taken](take) once.
pub(crate) fn semaphore() -> Result<OwnedFd> {
    // SAFETY: eventfd has no memory-safety requirements.
    owned(unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Adds `count` to a [`semaphore`].
pub(crate) fn post(semaphore: BorrowedFd<'_>, count: u64) {
    // SAFETY: eventfd_write has no memory-safety requirements. Its only error, a full counter,
    // leaves the semaphore readable.
    let _full = unsafe { libc::eventfd_write(semaphore.as_raw_fd(), count) };
}

/// Takes 1 from a [`semaphore`] unless its count is 0.
pub(crate) fn take(semaphore: BorrowedFd<'_>) {
    let mut value = 0;
    // SAFETY: eventfd_read requires room for the value: a local variable.
    let _empty = unsafe { libc::eventfd_read(semaphore.as_raw_fd(), &raw mut value) };
}

/// Waits until `fd` is readable; returns false at the deadline. A signal does not end the wait.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<bool> {
    any_readable([Some(fd)], deadline)
}

/// Whether `fd` is readable now.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    readable(fd, Deadline::after(Some(Duration::ZERO)))
}

/// Waits until one of the descriptors is readable; returns false at the deadline.
pub(crate) fn any_readable<const N: usize>(fds: [Option<BorrowedFd<'_>>; N], deadline: Deadline) -> io::Result<bool> {
    // ppoll skips negative descriptors.
    let fds = fds.map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd()));
    loop {
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let left = deadline.left().map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: ppoll requires `N` pollfds, a timespec or NULL, and a signal mask or NULL: the
        // array has `N` elements, and the pointers are NULL or to locals that live during the call.
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
