//! Errors of futures.

use std::fmt;
use std::io;

use crate::error::ErrorKind;
use crate::types::WcError;

/// The reason why a future gave no success.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The request failed, and its queue pair is in the error state.
    Failed(WcError),
    /// The [`Driver`](super::Driver) was dropped, or its task ended: nobody fetches completions.
    /// The memory of requests in flight comes free when their queue pair is dropped.
    DriverGone,
    /// The future belongs to the parent of this forked process.
    Forked,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::DriverGone => f.write_str("the driver of the queue pair is gone: keep it running until the end"),
            Self::Forked => ErrorKind::Forked.fmt(f),
        }
    }
}

debug_is_display!(Error);

impl std::error::Error for Error {}

impl From<WcError> for Error {
    fn from(error: WcError) -> Self {
        Self::Failed(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}
