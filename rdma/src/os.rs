//! Descriptors and limits that only Linux has, for Linux. `os/elsewhere.rs` takes the place of this
//! file on other systems.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{self, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{self, EfdFlags};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, ClockId, Expiration, TimerFlags, TimerSetTimeFlags};

/// The longest time that goes to the kernel: its seconds fit into every C library's type.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A descriptor that is readable while one of others is.
#[derive(Debug)]
pub(crate) struct Epoll(epoll::Epoll);

impl Epoll {
    pub(crate) fn new() -> nix::Result<Self> {
        epoll::Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }

    /// Watches whether `fd` is readable.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> nix::Result<()> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// A counter that is readable while it is not 0. No call of it blocks.
#[derive(Debug)]
pub(crate) struct EventFd(eventfd::EventFd);

impl EventFd {
    /// A counter that [`take`](Self::take) sets to 0.
    pub(crate) fn new() -> nix::Result<Self> {
        Self::with(EfdFlags::empty())
    }

    /// A counter that [`take`](Self::take) lowers by 1.
    pub(crate) fn semaphore() -> nix::Result<Self> {
        Self::with(EfdFlags::EFD_SEMAPHORE)
    }

    fn with(flags: EfdFlags) -> nix::Result<Self> {
        eventfd::EventFd::from_flags(flags | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Self)
    }

    /// Adds `count`.
    pub(crate) fn add(&self, count: u64) {
        // The only error, a full counter, leaves it readable.
        let _full = self.0.write(count);
    }

    /// Lowers the counter, unless it is 0.
    pub(crate) fn take(&self) {
        let _empty = self.0.read();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that becomes readable at a time.
#[derive(Debug)]
pub(crate) struct TimerFd(timerfd::TimerFd);

impl TimerFd {
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        timerfd::TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map(Self)
    }

    /// Makes the descriptor readable after a time, or not at all; it is not readable until then.
    pub(crate) fn set(&self, after: Option<Duration>) -> nix::Result<()> {
        let Some(after) = after else { return self.0.unset() };
        // A time of zero would stop the timer.
        let after = TimeSpec::from_duration(after.clamp(Duration::from_nanos(1), LONGEST));
        self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a descriptor is ready; returns false at the timeout.
pub(crate) fn poll(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> nix::Result<bool> {
    let timeout = timeout.map(|timeout| TimeSpec::from_duration(timeout.min(LONGEST)));
    let timeout = timeout.as_ref().map_or(ptr::null(), |timeout| ptr::from_ref(timeout.as_ref()));
    // SAFETY: ppoll requires as many pollfds as the number says, a timespec or NULL, and a signal
    // mask or NULL: the slice has its length, and the pointers are NULL or to locals that live
    // during the call.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout, ptr::null()) };
    Errno::result(ready).map(|ready| ready > 0)
}

/// The soft limit of locked memory in bytes; `None` if it is unlimited.
pub(crate) fn memlock_limit() -> Option<u64> {
    let (limit, _hard) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (limit != RLIM_INFINITY).then_some(limit)
}

/// Faults in the pages of a range of whole pages, to be written if `writes`. `EINVAL` before Linux
/// 5.14.
pub(crate) fn populate(start: usize, len: usize, writes: bool) -> nix::Result<()> {
    if cfg!(miri) {
        return Err(Errno::ENOSYS);
    }
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: madvise requires advice that breaks no memory in use: populating changes no
        // contents and no mapping, whatever is mapped in the range.
        let done = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, advice) };
        match Errno::result(done) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// The number of nodes that the mask of [`bind`] has: more than any kernel.
const NODES: usize = 1024;

/// Lets a mapping, whose pages nobody has touched, have pages of this NUMA node alone. `EINVAL` if
/// the node has no memory.
pub(crate) fn bind(start: NonNull<u8>, len: usize, node: u32) -> nix::Result<()> {
    let node = usize::try_from(node).ok().filter(|node| *node < NODES).ok_or(Errno::EINVAL)?;
    let bits = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; NODES / 32];
    mask[node / bits] = 1 << (node % bits);
    let (start, nodes): (*mut libc::c_void, _) = (start.as_ptr().cast(), NODES as libc::c_ulong + 1);
    // SAFETY: mbind requires a mask of as many bits as the number says, less one, and it changes no
    // contents: the mask has at least `NODES` bits and lives during the call.
    let done = unsafe { libc::syscall(libc::SYS_mbind, start, len, libc::MPOL_BIND, mask.as_ptr(), nodes, 0) };
    Errno::result(done).map(drop)
}
