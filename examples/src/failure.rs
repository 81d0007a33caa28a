//! Why a program ends: one line that says what went wrong and what to do, and an exit status.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdma_collectives::{Cause, Error, ErrorKind, JobError};
use rdma_net::FailureKind;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::layer as printer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The paragraph of `--help` about exit statuses.
pub const STATUS_HELP: &str = "Exit status: 0 success, 1 failure, 2 invalid arguments, 3 another rank failed. \
                               --log debug shows more on standard error.";

/// The environment variable in which this package's launcher gives a rank its place.
pub(crate) const LAUNCH: &str = "RDMA_EXAMPLES_LAUNCH";

/// The kind of an unsuccessful end; the discriminant is the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An operation of this process failed.
    Failed = 1,
    /// The arguments are invalid.
    Usage = 2,
    /// Another rank failed and has reported it; the launcher does not report this process too.
    Peer = 3,
    /// The reader has closed standard output (`all_reduce | head`), which is no failure of the job.
    BrokenPipe = 4,
    /// A part of the work was not done; the status is that of rsync.
    Partial = 23,
}

/// The reason why a program cannot go on, and advice.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "))]
pub struct Failure {
    kind: Kind,
    /// Empty if a rank has already reported the failure.
    text: String,
    /// Whether the reason may be known to another rank alone.
    is_effect: bool,
    /// The reason as data.
    cause: Cause,
}

impl Failure {
    fn of(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), is_effect: false, cause: Cause::Other }
    }

    /// A failure of this process; `text` says what did not work, and what to do about it.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(Kind::Failed, text)
    }

    /// The failure to start a thread or a process.
    pub fn not_started(what: impl fmt::Display, error: &io::Error) -> Self {
        Error::not_started(what, error).into()
    }

    /// A failure for lack of memory.
    pub(crate) fn out_of_memory(what: impl fmt::Display) -> Self {
        Error::out_of_memory(what).into()
    }

    /// The end of another process, which the launcher reports if it is of this package.
    pub(crate) fn lost(why: String) -> Self {
        if is_launched() { Self::peer(why) } else { Self::new(why) }
    }

    /// A success that lacks something, which was said before.
    pub fn partial(text: impl Into<String>) -> Self {
        Self::of(Kind::Partial, text)
    }

    /// A failure caused by invalid arguments.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::of(Kind::Usage, text)
    }

    /// A failure caused by an environment variable with a value that is not allowed.
    pub(crate) fn variable(name: &str, value: &str, why: &str) -> Self {
        Error::variable(name, value, why).into()
    }

    /// The end of another rank, which ends this process too.
    pub fn peer(text: impl Into<String>) -> Self {
        Self::of(Kind::Peer, text)
    }

    /// The failure of a rank that has reported it and ended with this exit status; `None` for any
    /// other status.
    pub(crate) fn reported(status: i32) -> Option<Self> {
        let kind = match status {
            1 => Kind::Failed,
            2 => Kind::Usage,
            3 => Kind::Peer,
            4 => Kind::BrokenPipe,
            _ => return None,
        };
        Some(Self::of(kind, ""))
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether a rank has already reported the failure.
    pub(crate) fn is_reported(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the failure with a prefix that names what was being done.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// Returns the failure with advice behind it.
    #[must_use]
    pub(crate) fn advised(mut self, advice: &str) -> Self {
        self.text = format!("{}; {advice}", self.text);
        self
    }

    /// Returns the failure with the last logged warning appended, if there was one.
    pub(crate) fn with_last_warning(mut self) -> Self {
        let (warning, _) = &*LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner);
        if !warning.is_empty() {
            self.text = format!("{} (warning: {warning})", self.text);
        }
        self
    }

    /// Returns the failure, with the last logged warning if the reason may stand there: if the
    /// peer was lost, or did not answer. Waits up to `limit` for the warning, which another thread
    /// logs. An old warning has another reason.
    #[must_use]
    pub fn explained(self, limit: Duration) -> Self {
        if !self.is_effect {
            return self;
        }
        let start = Instant::now();
        loop {
            let time = LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner).1;
            if time.is_some_and(|time| time.elapsed() < RECENT) {
                return Self { is_effect: false, ..self.with_last_warning() };
            }
            if start.elapsed() >= limit {
                return self;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A failure to get an answer from a peer.
    pub(crate) fn unanswered(text: impl Into<String>) -> Self {
        Self { is_effect: true, ..Self::new(text) }
    }

    /// The exit status for this failure.
    pub(crate) fn exit_status(&self) -> u8 {
        match self.kind {
            // The launcher must be able to tell a closed pipe from the end of a finished job.
            Kind::BrokenPipe if !is_launched() => 0,
            kind => kind as u8,
        }
    }
}

/// Whether the launcher of this package started this process.
#[must_use]
pub fn is_launched() -> bool {
    std::env::var_os(LAUNCH).is_some()
}

/// Prints a line on standard error in a single write: several ranks may share a terminal.
pub fn say(line: &str) {
    // Errors are ignored: with standard error closed, there is no place to report them.
    drop(io::stderr().write_all(format!("{line}\n").as_bytes()));
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::of(Kind::BrokenPipe, error.to_string()),
            // The programs write no files but their output, so this error concerns no RDMA device.
            io::ErrorKind::StorageFull => {
                Self::new(format!("cannot write the output: {error}; redirect it to where there is room"))
            }
            _ => Error::from(error).into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidInput => Kind::Usage,
            ErrorKind::Peer => Kind::Peer,
            _ => Kind::Failed,
        };
        let cause = error.cause().clone();
        Self { is_effect: error.is_effect(), cause, ..Self::of(kind, error.to_string()) }
    }
}

/// A rank tells the others of its failure.
impl JobError for Failure {
    fn kind(&self) -> ErrorKind {
        match self.kind {
            Kind::Failed | Kind::BrokenPipe | Kind::Partial => ErrorKind::Failed,
            Kind::Usage => ErrorKind::InvalidInput,
            Kind::Peer => ErrorKind::Peer,
        }
    }

    fn cause(&self) -> Cause {
        match self.kind {
            Kind::Usage if self.cause == Cause::Other => Cause::InvalidInput,
            _ => self.cause.clone(),
        }
    }

    fn is_effect(&self) -> bool {
        self.is_effect
    }

    fn context(self, what: String) -> Self {
        self.context(what)
    }

    fn explained(self) -> Self {
        self.with_last_warning()
    }
}

/// Errors whose text and advice are those of the collectives.
macro_rules! from {
    ($($error:ty $(, $parameter:ident)?;)*) => {$(
        impl$(<$parameter>)? From<$error> for Failure {
            fn from(error: $error) -> Self {
                Error::from(error).into()
            }
        }
    )*};
}

from! {
    rdma::Error;
    rdma::OpenError;
    rdma::PostError<R>, R;
    rdma::Failed<T>, T;
    rdma::cm::blocking::ConnectError;
    rdma::RemoteSliceError;
    rdma::WireError;
    rdma_mem::SharedMemoryError;
}

impl From<rdma_net::Failure> for Failure {
    fn from(failure: rdma_net::Failure) -> Self {
        let is_effect = matches!(failure.kind(), FailureKind::PeerGone | FailureKind::Timeout | FailureKind::Refused);
        Self { is_effect, ..Self::new(failure.to_string()) }
    }
}

/// The last warning that the library logged, for example why a peer was refused, which the returned
/// error does not say; and its time.
static LAST_WARNING: Mutex<(String, Option<Instant>)> = Mutex::new((String::new(), None));

/// Time for which a warning may be the reason of a failure of a service, whose attempts to connect
/// take about half of it.
const RECENT: Duration = Duration::from_secs(10);

/// The environment variable with the level of the log, or with levels by module.
const LOG_VARIABLE: &str = "RUST_LOG";

/// Prints the library's log events of a level, or those that [`LOG_VARIABLE`] asks for; without
/// both, keeps the last warning for a failure that it may explain.
pub(crate) fn log_to_stderr(level: Option<&str>) -> Result<(), Failure> {
    let variable = std::env::var(LOG_VARIABLE).ok().filter(|value| !value.is_empty());
    if let Some(asked_for) = level.or(variable.as_deref()) {
        let filter: Result<Targets, _> = asked_for.parse();
        let filter = filter.map_err(|error| Failure::variable(LOG_VARIABLE, asked_for, &error.to_string()))?;
        tracing_subscriber::registry().with(printer().with_writer(io::stderr).with_filter(filter)).init();
        return Ok(());
    }
    let keep = printer().with_writer(|| Keep).without_time().with_level(false).with_target(false).with_ansi(false);
    tracing_subscriber::registry().with(keep.with_filter(LevelFilter::WARN)).init();
    Ok(())
}

/// A log writer that stores each event in [`LAST_WARNING`].
struct Keep;

impl Write for Keep {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event).trim().to_owned();
        *LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner) = (text, Some(Instant::now()));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_pipe_is_quiet_success() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.exit_status(), 0);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::NotFound)).exit_status(), 1);
    }
}
