//! System calls: sockets, event loops, threads, forks, and the kernel's information about other
//! processes.
//!
//! Calls go through `nix`. A function that calls `libc` itself names the call that `nix` lacks.
//!
//! # Files
//!
//! ```text
//!   bell.rs                     wakes another process
//!   socket.rs, private.rs       sockets with abstract names; descriptors that a forked child
//!                               closes
//!   tcp.rs, route.rs            connections between hosts; source addresses
//!   event_loop.rs, wait_set.rs  sleeps until a descriptor is ready; bells on which a thread may
//!                               wait
//!   fork.rs, process.rs         fork safety; other processes, as the kernel identifies them
//!   owner.rs                    who listens at an address, for messages
//!   lock.rs, published.rs       a lock that a panic leaves usable; a value that is set once
//!   thread.rs, signal.rs        the threads of this library; signals that interrupt waits
//! ```

pub(crate) mod bell;
pub(crate) mod event_loop;
pub(crate) mod fork;
pub(crate) mod lock;
pub(crate) mod owner;
pub(crate) mod private;
pub(crate) mod process;
pub(crate) mod published;
pub(crate) mod route;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod tcp;
pub(crate) mod thread;
pub(crate) mod wait_set;

use std::cell::Cell;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use rdma_mem::SharedMemoryError;

use crate::engine::{self, Time};

/// A system call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", io::Error::from(*errno))]
pub(crate) struct Error {
    /// The name of the call.
    pub(crate) call: &'static str,
    /// The error number that it returned.
    pub(crate) errno: Errno,
}

/// The result of a system call.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Gives a failure the name of its system call.
pub(crate) trait Named<T> {
    /// Names the call.
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for nix::Result<T> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|errno| Error { call, errno })
    }
}

impl<T> Named<T> for io::Result<T> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| Error { call, errno: Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)) })
    }
}

impl From<SharedMemoryError> for Error {
    fn from(error: SharedMemoryError) -> Self {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EINVAL));
        let call = if let SharedMemoryError::System { call, .. } = error { call } else { "memfd_create" };
        Self { call, errno }
    }
}

/// Keeps the error for [`failed_call`], since an `engine::Errno` has no name of a call.
impl From<Error> for engine::Errno {
    fn from(error: Error) -> Self {
        FAILED.set(Some(error));
        Self(error.errno as i32)
    }
}

thread_local! {
    /// The newest system call error whose name was lost in the conversion to an error number.
    static FAILED: Cell<Option<Error>> = const { Cell::new(None) };
}

/// The name of the system call that failed with `errno`, if the function of the device that has
/// just returned `errno` to this thread failed because of a system call.
///
/// A verb returns only an error number; the name shows which call a seccomp filter or a limit of a
/// container has refused. Each name is returned once.
#[must_use]
pub fn failed_call(errno: i32) -> Option<&'static str> {
    FAILED.take().filter(|error| error.errno as i32 == errno).map(|error| error.call)
}

/// The current time of the monotonic clock.
pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(std::time::Duration::ZERO, std::time::Duration::from);
    Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Random bytes that no other process can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // `nix` has no getrandom.
    // SAFETY: getrandom writes at most N bytes into a live array of N bytes.
    let written = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    Errno::result(written).named("getrandom")?;
    debug_assert_eq!(usize::try_from(written), Ok(N), "up to 256 bytes come at once");
    Ok(bytes)
}

/// A copy of a descriptor that a number names; `None` if no descriptor is open under the number.
pub(crate) fn copy_of(number: RawFd) -> Option<OwnedFd> {
    // `nix` copies only descriptors that the caller owns or borrows.
    // SAFETY: this fcntl takes two numbers, and fails for one that is not open.
    let copy = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) }).ok()?;
    // SAFETY: from_raw_fd requires an open descriptor that has no other owner: fcntl has just made
    // this one.
    Some(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Lock for tests whose children live until a pipe is closed: a child forked by another test would
/// keep that pipe open.
#[cfg(test)]
pub(crate) static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
