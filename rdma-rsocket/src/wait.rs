//! Waiting: threads that sleep on several descriptors and on the sockets of other threads.
//!
//! When a thread takes completions or events of a socket, the descriptors of the libraries are no
//! longer readable, and other threads that sleep on them would miss the news. So every sleeping
//! thread has a [`Bell`], and who changes a socket rings the bells of the threads that sleep on it.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::process::Owner;

/// How long a thread looks for completions before it sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(10);

/// The descriptor on which one thread sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    /// The process that made the bell: a forked child would share it with its parent.
    process: Owner,
    event: EventFd,
}

thread_local! {
    static BELL: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

impl Bell {
    /// The calling thread's bell.
    pub(crate) fn of_thread() -> Result<Arc<Self>, Errno> {
        BELL.with_borrow_mut(|slot| {
            let process = Owner::current();
            if let Some(bell) = slot.as_ref().filter(|bell| bell.process == process) {
                return Ok(Arc::clone(bell));
            }
            let bell = Arc::new(Self::new()?);
            *slot = Some(Arc::clone(&bell));
            Ok(bell)
        })
    }

    pub(crate) fn new() -> Result<Self, Errno> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { process: Owner::current(), event })
    }

    /// Wakes the thread that sleeps on the bell, or its next sleep.
    pub(crate) fn ring(&self) {
        // Fails only if the counter is full, and then the bell rings already.
        let _full = self.event.write(1);
    }

    /// Sleeps until the bell rings, a descriptor has one of its events, or the deadline.
    pub(crate) fn sleep(&self, others: &mut Vec<Polled>, deadline: Option<Instant>) -> Result<(), Errno> {
        others.push(Polled::new(self.event.as_fd(), PollFlags::POLLIN));
        let polled = poll(others, deadline);
        others.pop();
        // Fails if the bell does not ring.
        let _silent = self.event.read();
        polled
    }
}

/// A descriptor to poll, and its events. It may be closed meanwhile, even be another file then: a
/// thread that wakes for that looks again and finds nothing.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Polled(libc::pollfd);

impl Polled {
    fn new(fd: BorrowedFd<'_>, events: PollFlags) -> Self {
        use std::os::fd::AsRawFd;
        Self::raw(fd.as_raw_fd(), events.bits())
    }

    /// A descriptor that becomes readable.
    pub(crate) fn readable(fd: RawFd) -> Self {
        Self::raw(fd, libc::POLLIN)
    }

    pub(crate) fn raw(fd: RawFd, events: libc::c_short) -> Self {
        Self(libc::pollfd { fd, events, revents: 0 })
    }

    /// The events that poll(2) found.
    pub(crate) fn found(&self) -> libc::c_short {
        self.0.revents
    }
}

/// poll(2) until a deadline; `EINTR` after a signal.
pub(crate) fn poll(entries: &mut [Polled], deadline: Option<Instant>) -> Result<(), Errno> {
    let timeout = deadline.map_or(PollTimeout::NONE, timeout);
    let count = entries.len().try_into().map_err(|_| Errno::EINVAL)?;
    // SAFETY: poll requires an array of this length: `Polled` is a transparent `pollfd`.
    Errno::result(unsafe { libc::poll(entries.as_mut_ptr().cast(), count, timeout.into()) }).map(drop)
}

/// The time to a deadline in milliseconds, rounded up.
fn timeout(deadline: Instant) -> PollTimeout {
    let left = deadline.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000);
    i32::try_from(left).ok().and_then(|left| left.try_into().ok()).unwrap_or(PollTimeout::MAX)
}

/// The threads that sleep on a socket.
#[derive(Debug, Default)]
pub(crate) struct Sleepers(Vec<Arc<Bell>>);

impl Sleepers {
    pub(crate) fn join(&mut self, bell: &Arc<Bell>) {
        self.0.push(Arc::clone(bell));
    }

    pub(crate) fn leave(&mut self, bell: &Arc<Bell>) {
        if let Some(place) = self.0.iter().position(|other| Arc::ptr_eq(other, bell)) {
            self.0.swap_remove(place);
        }
    }

    /// Wakes them all.
    pub(crate) fn wake(&self) {
        self.0.iter().for_each(|bell| bell.ring());
    }
}
