//! Sleeping until one of several descriptors has something to read.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Failure;

/// Sleeps until one of the descriptors is readable, or broken; `false` at the deadline. It may also return early.
///
/// # Errors
/// What the kernel reports.
pub fn readable(descriptors: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<bool, Failure> {
    let timeout = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
        None => PollTimeout::NONE,
        Some(left) if left.is_zero() => PollTimeout::ZERO,
        // Rounded up: a wait that ends early would be repeated without end.
        Some(left) => PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX),
    };
    let mut all: Vec<PollFd<'_>> = descriptors.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut all, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(true),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}
