//! Why an operation of a job cannot go on.

use std::fmt::{self, Display};
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use rdma::cm::blocking::ConnectError;
use rdma::{Failed, OpenError, PostError, RemoteSliceError, WcError, WcStatus, WireError};
use rdma_mem::SharedMemoryError;

use crate::collective::Collective;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation of this process failed, or this rank is the one that reports another's failure.
    Failed,
    /// What the caller gave makes no sense, alone or beside what other ranks gave.
    InvalidInput,
    /// Another rank failed, which has said so, or its launcher has.
    Peer,
    /// The other ranks made no progress, or an operation did not end in time.
    TimedOut,
}

/// The reason why an operation cannot go on, in one line, and advice.
#[derive(Clone, thiserror::Error)]
#[error("{}", .text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "))]
pub struct Error {
    kind: ErrorKind,
    text: String,
    /// Whether the reason may be known to another rank alone.
    is_effect: bool,
    rank: Option<usize>,
    host: Option<Arc<str>>,
    operation: Option<Collective>,
    /// The rank of a communicator that was waited for.
    pub(crate) waits_for: Option<usize>,
}

/// As [`Display`], so that a program whose `main` returns the error prints its text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl Error {
    fn of(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), is_effect: false, rank: None, host: None, operation: None, waits_for: None }
    }

    /// A failure of this process; `text` says what did not work, and what to do about it.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Failed, text)
    }

    /// What the caller gave makes no sense.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::InvalidInput, text)
    }

    /// The end of another rank, which ends this rank's work too.
    pub fn peer(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Peer, text)
    }

    /// The end of a time limit.
    pub(crate) fn timed_out(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::TimedOut, text)
    }

    /// A request that has failed; where it was flushed, another failure is the reason, perhaps one
    /// that only the peer knows.
    pub(crate) fn of_request(what: impl Display, error: WcError) -> Self {
        let failure = Self::new(format!("{what} failed: {error}"));
        Self { is_effect: error.status == WcStatus::WR_FLUSH_ERR, ..failure }
    }

    /// The failure to start a thread or a process.
    pub fn not_started(what: impl Display, error: &io::Error) -> Self {
        let hint = if error.raw_os_error() == Some(Errno::EAGAIN as i32) { THREADS } else { "" };
        Self::new(format!("cannot start {what}: {error}{hint}"))
    }

    /// A failure for lack of memory.
    pub fn out_of_memory(what: impl Display) -> Self {
        Self::new(format!("{what}{}", out_of_memory_hint()))
    }

    /// An environment variable with a value that is not allowed.
    #[must_use]
    pub fn variable(name: &str, value: &str, why: &str) -> Self {
        Self::invalid(format!("{name} is {value:?} in the environment: {why}; correct it, or unset it"))
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The rank of the job that failed, or for which this rank waited in vain; `None` if it is this
    /// rank, not known, or not one alone.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.rank
    }

    /// The name of the host of [`rank`](Self::rank).
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Option<Collective> {
        self.operation
    }

    /// Returns the error with the rank that failed, unless one is known.
    pub(crate) fn of_rank(mut self, rank: usize, host: impl FnOnce() -> Option<Arc<str>>) -> Self {
        if self.rank.is_none() {
            (self.rank, self.host) = (Some(rank), host());
        }
        self
    }

    /// Returns an error of a wait with the rank of the communicator that was waited for;
    /// [`Communicator`](crate::Communicator) says which one of the job it is.
    pub(crate) fn waits_for(self, rank: usize) -> Self {
        let waits_for = self.waits_for.or(Some(rank));
        Self { waits_for, ..self }
    }

    /// Returns the error with the operation that failed.
    pub(crate) fn of_operation(self, operation: Option<Collective>) -> Self {
        Self { operation: self.operation.or(operation), ..self }
    }

    /// Whether the reason may be known to another rank alone: the operation failed because a peer
    /// was lost.
    #[must_use]
    pub fn is_effect(&self) -> bool {
        self.is_effect
    }

    /// Returns the error with a prefix that names what was being done.
    #[must_use]
    pub fn context(mut self, what: impl Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

/// An error type with which a rank may end its job by [`Group::conclude_as`].
///
/// [`Group::conclude_as`]: crate::bootstrap::Group::conclude_as
pub trait Cause: From<Error> + Display {
    /// The kind of the error.
    fn kind(&self) -> ErrorKind;

    /// As [`Error::is_effect`].
    fn is_effect(&self) -> bool;

    /// Returns the error with a prefix that names the rank.
    #[must_use]
    fn context(self, what: String) -> Self;

    /// Returns the error with what the program knows beyond it, for example its last warning: no
    /// other rank has told of a failure that explains this one.
    #[must_use]
    fn explained(self) -> Self {
        self
    }
}

impl Cause for Error {
    fn kind(&self) -> ErrorKind {
        self.kind
    }

    fn is_effect(&self) -> bool {
        self.is_effect
    }

    fn context(self, what: String) -> Self {
        self.context(what)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let hint = if error.raw_os_error() == Some(Errno::EMFILE as i32) { OPEN_FILES } else { "" };
        Self::new(format!("{error}{hint}"))
    }
}

impl From<rdma::Error> for Error {
    fn from(error: rdma::Error) -> Self {
        Self::new(format!("{error}{}", hint(error)))
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let hint = match &error {
            OpenError::Device { error, .. } | OpenError::List(error) => hint(*error),
            _ => String::new(),
        };
        Self::new(format!("{error}{hint}"))
    }
}

impl From<SharedMemoryError> for Error {
    fn from(error: SharedMemoryError) -> Self {
        let hint = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE) => OPEN_FILES.to_owned(),
            Some(Errno::EFBIG) => FILE_SIZE.to_owned(),
            Some(Errno::ENOMEM) => out_of_memory_hint(),
            _ => String::new(),
        };
        Self::new(format!("shared memory: {error}{hint}"))
    }
}

/// Advice for a process that has too many files open.
pub const OPEN_FILES: &str = "; raise the limit of open files (`ulimit -n`)";

/// Advice for a process that may not make memory files as long as it needs.
const FILE_SIZE: &str = "; raise the limit of file sizes (`ulimit -f`)";

/// Advice for a process that may start no more threads or processes.
const THREADS: &str = "; raise the limit of processes and threads (`ulimit -u`)";

/// Advice for an error that a limit of memory may explain; `rdma` advises on other limits.
fn hint(error: rdma::Error) -> String {
    match error.kind() {
        rdma::ErrorKind::OutOfMemory => out_of_memory_hint(),
        _ => String::new(),
    }
}

impl<R> From<PostError<R>> for Error {
    fn from(error: PostError<R>) -> Self {
        error.error().into()
    }
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error.into()
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        error.error.into()
    }
}

impl From<RemoteSliceError> for Error {
    fn from(error: RemoteSliceError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::new(error.to_string())
    }
}

fn out_of_memory_hint() -> String {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    let advice = "give smaller sizes, or run fewer processes";
    let limit = |resource| getrlimit(resource).ok().map(|(soft, _)| soft).filter(|&soft| soft != RLIM_INFINITY);
    match (limit(Resource::RLIMIT_AS), limit(Resource::RLIMIT_MEMLOCK)) {
        (Some(space), _) => format!("; {advice}, or a larger address space than {} MiB (`ulimit -v`)", space >> 20),
        (None, Some(locked)) => format!("; {advice}, or more lockable memory than {} KiB (`ulimit -l`)", locked >> 10),
        (None, None) => format!("; {advice}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_prints_as_one_line() {
        let error = Error::new("no such\n  device\n\n").context("soft7");
        assert_eq!(error.to_string(), "soft7: no such device");
    }

    #[test]
    fn a_thread_that_cannot_start_is_said_with_a_remedy() {
        // No machine has memory for this stack, which the kernel reports as too many threads do.
        let refused = std::thread::Builder::new().stack_size(1 << 60).spawn(|| ()).unwrap_err();
        let text = Error::not_started("the server's thread", &refused).to_string();
        assert!(text.starts_with("cannot start the server's thread: ") && text.ends_with("(`ulimit -u`)"), "{text}");
    }
}
