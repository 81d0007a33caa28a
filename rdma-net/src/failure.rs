//! The error of a connection.

use std::fmt;
use std::io;
use std::sync::Arc;

use rdma::{AsyncEventKind, Error, ErrorKind, TransportType, WcError, WcStatus};

use super::protocol::{Refuse, RefuseCode, Violation};

/// The reason why a connection, or an attempt to connect, has failed.
///
/// All waiters of a connection get clones of the same failure: the first one.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    kind: FailureKind,
    cause: Cause,
}

/// The kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// One of the sides has closed the connection: [`Failure::code`] has the peer's code.
    Closed,
    /// The peer refused the connection, or nothing listens at its address.
    Refused,
    /// The peer's process or host is gone, has fallen silent, or has ended the connection by a
    /// refusal or a wrong access.
    PeerGone,
    /// The peer broke the protocol.
    Protocol,
    /// A message is longer than the peer accepts.
    TooLong,
    /// The peer did not answer in time.
    Timeout,
    /// The node's [`Driver`](super::Driver) was dropped.
    DriverGone,
    /// This side's device or connection manager failed.
    Local,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    None,
    Code(u32),
    Refuse(RefuseCode, Arc<str>),
    Violation(Violation),
    Error(Error),
    Completion(WcError),
    Event(AsyncEventKind),
}

impl Failure {
    pub(super) fn new(kind: FailureKind) -> Self {
        Self { kind, cause: Cause::None }
    }

    pub(super) fn closed(code: u32) -> Self {
        Self { kind: FailureKind::Closed, cause: Cause::Code(code) }
    }

    pub(super) fn refused(refuse: &Refuse) -> Self {
        Self { kind: FailureKind::Refused, cause: Cause::Refuse(refuse.code, refuse.text.as_str().into()) }
    }

    pub(super) fn violation(violation: Violation) -> Self {
        Self { kind: FailureKind::Protocol, cause: Cause::Violation(violation) }
    }

    pub(super) fn with_error(kind: FailureKind, error: Error) -> Self {
        Self { kind, cause: Cause::Error(error) }
    }

    /// The failure of a connection whose request has completed with an error.
    pub(super) fn completion(error: WcError) -> Self {
        let kind = if is_local(error.status) { FailureKind::Local } else { FailureKind::PeerGone };
        Self { kind, cause: Cause::Completion(error) }
    }

    /// The failure that an asynchronous event of a device with this transport reports.
    pub(super) fn event(event: AsyncEventKind, transport: TransportType) -> Self {
        let is_by_peer = match event {
            AsyncEventKind::QP_REQ_ERR | AsyncEventKind::QP_ACCESS_ERR => true,
            // There the queue pair breaks with its stream, which ends when a request of the peer is
            // refused: siw says no more than this of such a request.
            AsyncEventKind::QP_FATAL => transport == TransportType::IWARP,
            _ => false,
        };
        let kind = if is_by_peer { FailureKind::PeerGone } else { FailureKind::Local };
        Self { kind, cause: Cause::Event(event) }
    }

    /// Whether the failure says only that the peer does not answer, which is so while this side's
    /// port is down, too.
    pub(super) fn is_silence(&self) -> bool {
        let is_unanswered = |error: &WcError| {
            matches!(error.status, WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR | WcStatus::WR_FLUSH_ERR)
        };
        self.kind == FailureKind::PeerGone
            && match &self.cause {
                Cause::None => true,
                Cause::Completion(error) => is_unanswered(error),
                _ => false,
            }
    }

    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The code with which the peer closed the connection, if it did.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        if let Cause::Code(code) = self.cause { Some(code) } else { None }
    }

    /// The peer's reason for refusing the connection, if it gave one.
    #[must_use]
    pub fn refuse_code(&self) -> Option<RefuseCode> {
        if let Cause::Refuse(code, _) = self.cause { Some(code) } else { None }
    }

    /// The error of a call, if one is the cause: of the device, of the connection manager, or of
    /// the exchange over TCP.
    #[must_use]
    pub fn as_error(&self) -> Option<Error> {
        if let Cause::Error(error) = self.cause { Some(error) } else { None }
    }

    /// The error of a completion, if a request that failed is the cause.
    #[must_use]
    pub fn as_wc_error(&self) -> Option<WcError> {
        if let Cause::Completion(error) = self.cause { Some(error) } else { None }
    }

    /// The rule of the protocol that the peer broke, if it broke one.
    #[must_use]
    pub fn as_violation(&self) -> Option<Violation> {
        if let Cause::Violation(violation) = self.cause { Some(violation) } else { None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Disconnected => FailureKind::PeerGone,
            ErrorKind::Timeout => FailureKind::Timeout,
            ErrorKind::NotListening | ErrorKind::Rejected(_) => FailureKind::Refused,
            _ => FailureKind::Local,
        };
        Self::with_error(kind, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            FailureKind::Closed => "the connection is closed",
            FailureKind::Refused => "the peer refused the connection",
            FailureKind::PeerGone => match &self.cause {
                Cause::Completion(error) if is_refusal(error.status) => "the peer refused a request",
                Cause::Event(_) => "the peer broke the connection",
                _ => "the peer is gone",
            },
            FailureKind::Protocol => "the peer broke the protocol",
            FailureKind::TooLong => "the message is longer than the peer accepts",
            FailureKind::Timeout => "the peer did not answer in time",
            FailureKind::DriverGone => "the driver of the node was dropped",
            FailureKind::Local => "this end failed",
        })?;
        match &self.cause {
            Cause::None => Ok(()),
            Cause::Code(code) => write!(f, " with code {code}"),
            Cause::Refuse(code, text) if text.is_empty() => write!(f, " ({code:?})"),
            Cause::Refuse(code, text) => write!(f, " ({code:?}): {text}"),
            Cause::Violation(violation) => write!(f, ": {violation}"),
            Cause::Error(error) => write!(f, ": {error}"),
            Cause::Completion(error) => write!(f, ": {error}"),
            Cause::Event(event) => write!(f, ": the device reports: {event}"),
        }
    }
}

/// Whether this side alone is the cause of a status.
fn is_local(status: WcStatus) -> bool {
    use WcStatus as S;
    matches!(
        status,
        S::LOC_LEN_ERR
            | S::LOC_QP_OP_ERR
            | S::LOC_PROT_ERR
            | S::LOC_ACCESS_ERR
            | S::MW_BIND_ERR
            | S::FATAL_ERR
            | S::GENERAL_ERR
    )
}

/// Whether the peer is there, and has refused a request.
fn is_refusal(status: WcStatus) -> bool {
    use WcStatus as S;
    matches!(status, S::REM_ACCESS_ERR | S::REM_INV_REQ_ERR | S::REM_OP_ERR | S::REM_ABORT_ERR | S::RNR_RETRY_EXC_ERR)
}

/// As `Display`, because `main` prints the error that it returns with `Debug`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {
    /// The [`Error`], the [`WcError`] or the [`Violation`] that is the cause. The text of the
    /// failure has its text too.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Error(error) => Some(error),
            Cause::Completion(error) => Some(error),
            Cause::Violation(violation) => Some(violation),
            Cause::None | Cause::Code(_) | Cause::Refuse(..) | Cause::Event(_) => None,
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            FailureKind::Closed | FailureKind::DriverGone => io::ErrorKind::BrokenPipe,
            FailureKind::Refused => io::ErrorKind::ConnectionRefused,
            FailureKind::PeerGone => io::ErrorKind::ConnectionReset,
            FailureKind::Protocol => io::ErrorKind::InvalidData,
            FailureKind::TooLong => io::ErrorKind::InvalidInput,
            FailureKind::Timeout => io::ErrorKind::TimedOut,
            FailureKind::Local => io::ErrorKind::Other,
        };
        Self::new(kind, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_its_cause_and_becomes_an_io_error() {
        let failure = Failure::refused(&Refuse::new(RefuseCode::Busy, "100 connections"));
        assert_eq!(failure.to_string(), "the peer refused the connection (Busy): 100 connections");
        assert_eq!(io::Error::from(failure.clone()).kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(failure.refuse_code(), Some(RefuseCode::Busy));
        let failure = Failure::violation(Violation::NoCredit);
        assert_eq!(failure.as_violation(), Some(Violation::NoCredit));
        assert!(failure.to_string().ends_with("a data message came without a credit"));
        assert_eq!(Failure::closed(7).code(), Some(7));
    }

    #[test]
    fn a_failure_gives_its_cause_as_data() {
        use std::error::Error as _;
        let error = Error::from_errno(rdma::Verb::RegisterMr, libc::ENOMEM);
        let failure = Failure::from(error);
        assert_eq!((failure.as_error(), failure.as_wc_error()), (Some(error), None));
        assert_eq!(failure.source().and_then(|source| source.downcast_ref::<Error>()), Some(&error));
        let error = WcError::new(WcStatus::RETRY_EXC_ERR, 0x81);
        let failure = Failure::completion(error);
        assert_eq!((failure.as_error(), failure.as_wc_error()), (None, Some(error)));
        assert_eq!(failure.source().and_then(|source| source.downcast_ref::<WcError>()), Some(&error));
        assert!(failure.to_string().contains(&error.to_string()), "a log without sources loses nothing");
        let failure = Failure::violation(Violation::NoCredit);
        assert_eq!(failure.source().and_then(|source| source.downcast_ref()), Some(&Violation::NoCredit));
        for failure in [Failure::new(FailureKind::PeerGone), Failure::closed(7)] {
            assert!(failure.source().is_none() && failure.as_error().is_none() && failure.as_wc_error().is_none());
        }
        // Of an error of the standard library too.
        let io = io::Error::from(Failure::completion(error));
        assert!(io.source().is_some_and(|source| source.is::<WcError>()));
    }

    #[test]
    fn a_failure_blames_the_end_that_has_failed() {
        let of = |status| Failure::completion(WcError::new(status, 0));
        let event = |kind| Failure::event(kind, TransportType::INFINIBAND);
        for (failure, kind, start) in [
            (of(WcStatus::RETRY_EXC_ERR), FailureKind::PeerGone, "the peer is gone: "),
            (of(WcStatus::REM_ACCESS_ERR), FailureKind::PeerGone, "the peer refused a request: "),
            (of(WcStatus::LOC_PROT_ERR), FailureKind::Local, "this end failed: "),
            (of(WcStatus::FATAL_ERR), FailureKind::Local, "this end failed: "),
            (event(AsyncEventKind::CQ_ERR), FailureKind::Local, "this end failed: "),
            (event(AsyncEventKind::QP_FATAL), FailureKind::Local, "this end failed: "),
            (Failure::event(AsyncEventKind::QP_FATAL, TransportType::IWARP), FailureKind::PeerGone, "the peer broke"),
            (event(AsyncEventKind::QP_ACCESS_ERR), FailureKind::PeerGone, "the peer broke the connection: "),
        ] {
            assert_eq!(failure.kind(), kind, "{failure}");
            assert!(failure.to_string().starts_with(start), "{failure}");
        }
        let of = |kind| Failure::from(Error::new(rdma::Verb::Connect, kind)).kind();
        assert_eq!(of(ErrorKind::Disconnected), FailureKind::PeerGone);
        assert_eq!(of(ErrorKind::NotListening), FailureKind::Refused);
        assert_eq!(of(ErrorKind::Timeout), FailureKind::Timeout);
        assert_eq!(of(ErrorKind::PortDown), FailureKind::Local);
    }
}
