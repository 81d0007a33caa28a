//! Errors of futures.

use std::io;

use crate::error::{Error as VerbError, ErrorKind};
use crate::types::WcError;

/// The reason why a future gave no success.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request failed, and its queue pair is in the error state.
    #[error(transparent)]
    Failed(#[from] WcError),
    /// The [`Driver`](super::Driver) was dropped, or its task ended: nobody fetches completions.
    /// The memory of requests in flight comes free when their queue pair is dropped.
    #[error("the driver of the queue pair is gone: keep it running until the end")]
    DriverGone,
    /// The request was not posted.
    #[error(transparent)]
    Refused(#[from] VerbError),
    /// The future belongs to the parent of this forked process.
    #[error("{}", ErrorKind::Forked)]
    Forked,
}

debug_is_display!(Error);

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}
