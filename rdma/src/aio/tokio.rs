//! Waiting on tokio.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::Readiness;
use crate::error::Verb;
use crate::wait;

/// A descriptor that is registered with a runtime of tokio.
#[derive(Debug)]
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Registers a duplicate of the descriptor with the current runtime.
    ///
    /// # Errors
    ///
    /// Too many open files; no runtime, or one that is shutting down.
    ///
    /// # Panics
    ///
    /// If the runtime was built without I/O (`enable_io`).
    #[track_caller]
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        Handle::try_current().map_err(io::Error::other)?;
        let owned = descriptor.as_fd().try_clone_to_owned()?;
        #[allow(deprecated, reason = "the function in its place is not in every release since the oldest supported")]
        let registered = AsyncFd::with_interest(owned, Interest::READABLE)?;
        Ok(Self(registered))
    }
}

impl Readiness for Readable {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            if wait::is_readable(Verb::WatchDescriptor, self.0.as_fd())? {
                guard.retain_ready();
                return Poll::Ready(Ok(()));
            }
            // Keeps an event that came after the guard was made.
            guard.clear_ready();
        }
    }
}
