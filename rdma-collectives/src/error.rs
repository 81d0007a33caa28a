//! Why an operation of a job cannot go on.

use std::fmt::{self, Display};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use rdma::cm::blocking::ConnectError;
use rdma::{Failed, OpenError, PostError, RemoteSliceError, WcError, WcStatus, WireError};
use rdma_mem::SharedMemoryError;

use crate::cause::Cause;
use crate::collective::Collective;

/// Whose failure an [`Error`] is, and whether another attempt may succeed. Its [`Cause`] says more.
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
///
/// A program that reacts to failures matches on the [cause](Self::cause), which every rank of the
/// job gets:
///
/// ```
/// use rdma_collectives::{Cause, Error};
///
/// /// Whether the job may succeed if it is started again, without the rank that is returned.
/// fn is_worth_a_retry(error: &Error) -> Option<usize> {
///     match error.cause() {
///         Cause::Ended | Cause::Silent | Cause::Request(_) | Cause::Stalled { .. } => error.rank(),
///         _ => None,
///     }
/// }
/// # assert_eq!(is_worth_a_retry(&Error::new("no paper")), None);
/// ```
///
/// [`source`](std::error::Error::source) is the error of the verbs or of the system, at the rank
/// that has it; the text of this error has its text too.
#[derive(Clone)]
pub struct Error(Box<Fields>);

/// The fields of an [`Error`], apart so that a result of the data path is a word.
#[derive(Clone)]
struct Fields {
    kind: ErrorKind,
    text: String,
    cause: Cause,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// Whether the reason may be known to another rank alone.
    is_effect: bool,
    rank: Option<usize>,
    host: Option<Arc<str>>,
    operation: Option<Collective>,
    /// The rank of a communicator that was waited for.
    waits_for: Option<usize>,
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.text.lines().map(str::trim).filter(|line| !line.is_empty());
        f.write_str(&lines.collect::<Vec<_>>().join(" "))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

/// As [`Display`], so that a program whose `main` returns the error prints its text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl Error {
    fn of(kind: ErrorKind, cause: Cause, text: impl Into<String>) -> Self {
        Self(Box::new(Fields {
            kind,
            text: text.into(),
            cause,
            source: None,
            is_effect: false,
            rank: None,
            host: None,
            operation: None,
            waits_for: None,
        }))
    }

    /// A failure of this process; `text` says what did not work, and what to do about it.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Failed, Cause::Other, text)
    }

    /// What the caller gave makes no sense.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::InvalidInput, Cause::InvalidInput, text)
    }

    /// The end of another rank, which ends this rank's work too.
    pub fn peer(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Peer, Cause::Other, text)
    }

    /// The end of a time limit.
    pub(crate) fn timed_out(text: impl Into<String>, limit: Duration) -> Self {
        Self::of(ErrorKind::TimedOut, Cause::TimedOut { limit }, text)
    }

    /// Returns the error with another cause.
    #[must_use]
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.0.cause = cause;
        self
    }

    fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// A request that has failed; where it was flushed, another failure is the reason, perhaps one
    /// that only the peer knows.
    pub(crate) fn of_request(what: impl Display, error: WcError) -> Self {
        let failure = Self::new(format!("{what} failed: {error}"));
        let mut failure = failure.with_cause(Cause::Request(error)).with_source(error);
        failure.0.is_effect = error.status == WcStatus::WR_FLUSH_ERR;
        failure
    }

    /// The failure to start a thread or a process.
    pub fn not_started(what: impl Display, error: &io::Error) -> Self {
        let hint = if error.raw_os_error() == Some(Errno::EAGAIN as i32) { THREADS } else { "" };
        let errno = error.raw_os_error();
        let failure = Self::new(format!("cannot start {what}: {error}{hint}")).with_cause(Cause::System { errno });
        match errno {
            Some(errno) => failure.with_source(io::Error::from_raw_os_error(errno)),
            None => failure,
        }
    }

    /// A failure for lack of memory.
    pub fn out_of_memory(what: impl Display) -> Self {
        Self::new(format!("{what}{}", out_of_memory_hint())).with_cause(Cause::OutOfMemory)
    }

    /// An environment variable with a value that is not allowed.
    #[must_use]
    pub fn variable(name: &str, value: &str, why: &str) -> Self {
        Self::invalid(format!("{name} is {value:?} in the environment: {why}; correct it, or unset it"))
    }

    /// Whose failure the error is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The cause, as data. That of another rank's failure is the one that this rank had.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The rank of the job that failed, or for which this rank waited in vain; `None` if it is this
    /// rank, not known, or not one alone.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.0.rank
    }

    /// The name of the host of [`rank`](Self::rank).
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.0.host.as_deref()
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Option<Collective> {
        self.0.operation
    }

    /// Returns the error with the rank that failed, unless one is known.
    pub(crate) fn of_rank(mut self, rank: usize, host: impl FnOnce() -> Option<Arc<str>>) -> Self {
        if self.0.rank.is_none() {
            (self.0.rank, self.0.host) = (Some(rank), host());
        }
        self
    }

    /// Returns an error of a wait with the rank of the communicator that was waited for;
    /// [`Communicator`](crate::Communicator) says which one of the job it is.
    pub(crate) fn waits_for(mut self, rank: usize) -> Self {
        self.0.waits_for.get_or_insert(rank);
        self
    }

    /// The rank of a communicator that was waited for.
    pub(crate) fn awaited(&self) -> Option<usize> {
        self.0.waits_for
    }

    /// Returns the error with the operation that failed.
    pub(crate) fn of_operation(mut self, operation: Option<Collective>) -> Self {
        self.0.operation = self.0.operation.or(operation);
        self
    }

    /// Whether the reason may be known to another rank alone: the operation failed because a peer
    /// was lost.
    #[must_use]
    pub fn is_effect(&self) -> bool {
        self.0.is_effect
    }

    /// Returns the error with a prefix that names what was being done.
    #[must_use]
    pub fn context(mut self, what: impl Display) -> Self {
        self.0.text = format!("{what}: {}", self.0.text);
        self
    }
}

/// An error type with which a rank may end its job by [`Group::conclude_as`], and agree with the
/// others by [`Group::agree`].
///
/// [`Group::conclude_as`]: crate::bootstrap::Group::conclude_as
/// [`Group::agree`]: crate::bootstrap::Group::agree
pub trait JobError: From<Error> + Display {
    /// Whose failure the error is.
    fn kind(&self) -> ErrorKind;

    /// The cause, which the other ranks get: that of the [`Error`] that this error was made from.
    fn cause(&self) -> Cause {
        Cause::Other
    }

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

impl JobError for Error {
    fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    fn cause(&self) -> Cause {
        self.0.cause.clone()
    }

    fn is_effect(&self) -> bool {
        self.0.is_effect
    }

    fn context(self, what: String) -> Self {
        self.context(what)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let hint = if error.raw_os_error() == Some(Errno::EMFILE as i32) { OPEN_FILES } else { "" };
        let cause = match error.kind() {
            io::ErrorKind::OutOfMemory => Cause::OutOfMemory,
            _ => Cause::System { errno: error.raw_os_error() },
        };
        Self::new(format!("{error}{hint}")).with_cause(cause).with_source(error)
    }
}

impl From<rdma::Error> for Error {
    fn from(error: rdma::Error) -> Self {
        Self::new(format!("{error}{}", hint(error))).with_cause(cause(error)).with_source(error)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let (hint, cause) = match &error {
            OpenError::Device { error, .. } | OpenError::List(error) => (hint(*error), cause(*error)),
            _ => (String::new(), Cause::Verbs { errno: None }),
        };
        Self::new(format!("{error}{hint}")).with_cause(cause).with_source(error)
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
        let cause = match error.raw_os_error() {
            Some(errno) if errno == Errno::ENOMEM as i32 => Cause::OutOfMemory,
            errno => Cause::System { errno },
        };
        Self::new(format!("shared memory: {error}{hint}")).with_cause(cause).with_source(error)
    }
}

/// Advice for a process that has too many files open.
pub const OPEN_FILES: &str = "; raise the limit of open files (`ulimit -n`)";

/// Advice for a process that may not make memory files as long as it needs.
const FILE_SIZE: &str = "; raise the limit of file sizes (`ulimit -f`)";

/// Advice for a process that may start no more threads or processes.
const THREADS: &str = "; raise the limit of processes and threads (`ulimit -u`)";

fn cause(error: rdma::Error) -> Cause {
    match error.kind() {
        rdma::ErrorKind::OutOfMemory => Cause::OutOfMemory,
        _ => Cause::Verbs { errno: error.errno() },
    }
}

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
        Self::new(error.to_string()).with_cause(Cause::Protocol).with_source(error)
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::new(error.to_string()).with_cause(Cause::Protocol).with_source(error)
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
    fn an_error_keeps_its_cause_and_its_source() {
        let full = || io::Error::from_raw_os_error(Errno::ENOSPC as i32);
        let error = Error::from(full()).context("the report");
        assert_eq!(error.cause(), &Cause::System { errno: Some(Errno::ENOSPC as i32) });
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.downcast_ref::<io::Error>().unwrap().raw_os_error(), full().raw_os_error());
        let refused = rdma::Error::new(rdma::Verb::RegisterMr, rdma::ErrorKind::OutOfMemory);
        let error = Error::from(refused);
        assert_eq!(error.cause(), &Cause::OutOfMemory);
        assert_eq!(std::error::Error::source(&error).unwrap().downcast_ref(), Some(&refused));
        let flushed = WcError::new(WcStatus::WR_FLUSH_ERR, 0);
        let error = Error::of_request("a write", flushed);
        assert!(error.is_effect());
        assert_eq!(error.cause(), &Cause::Request(flushed));
        assert_eq!(Error::invalid("a hat").cause(), &Cause::InvalidInput);
    }

    #[test]
    fn a_thread_that_cannot_start_is_said_with_a_remedy() {
        // No machine has memory for this stack, which the kernel reports as too many threads do.
        let refused = std::thread::Builder::new().stack_size(1 << 60).spawn(|| ()).unwrap_err();
        let text = Error::not_started("the server's thread", &refused).to_string();
        assert!(text.starts_with("cannot start the server's thread: ") && text.ends_with("(`ulimit -u`)"), "{text}");
    }
}
