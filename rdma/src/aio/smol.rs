//! Waiting on async-io, the reactor of smol.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use async_io::Async;

use super::Readiness;
use crate::error::Verb;
use crate::wait;

/// A descriptor that is registered with async-io.
#[derive(Debug)]
pub struct Readable(Async<OwnedFd>);

impl Readable {
    /// Registers a duplicate of the descriptor.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        Ok(Self(Async::new_nonblocking(descriptor.as_fd().try_clone_to_owned()?)?))
    }
}

impl Readiness for Readable {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // The reactor reports a descriptor that has become readable since this look.
            if wait::is_readable(Verb::WatchDescriptor, self.0.as_fd())? {
                return Poll::Ready(Ok(()));
            }
            ready!(self.0.poll_readable(cx))?;
        }
    }
}
