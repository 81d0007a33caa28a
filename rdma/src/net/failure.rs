//! The error of a connection.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::protocol::{Refuse, RefuseCode, Violation};
use crate::error::{Error, ErrorKind};
use crate::types::WcError;

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
    /// One of the ends has closed the connection: [`Failure::code`] has the peer's code.
    Closed,
    /// The peer refused the connection, or nothing listens at its address.
    Refused,
    /// The peer's process or host is gone, or has fallen silent.
    PeerGone,
    /// The peer broke the protocol.
    Protocol,
    /// A message is longer than the peer accepts.
    TooLong,
    /// The peer did not answer in time.
    Timeout,
    /// The node's [`Driver`](super::Driver) was dropped.
    DriverGone,
    /// This end's device or connection manager failed.
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

    pub(super) fn completion(error: WcError) -> Self {
        Self { kind: FailureKind::PeerGone, cause: Cause::Completion(error) }
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

    /// The rule of the protocol that the peer broke, if it broke one.
    #[must_use]
    pub fn as_violation(&self) -> Option<Violation> {
        if let Cause::Violation(violation) = self.cause { Some(violation) } else { None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let is_gone = error.kind() == ErrorKind::Disconnected;
        Self::with_error(if is_gone { FailureKind::PeerGone } else { FailureKind::Local }, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            FailureKind::Closed => "the connection is closed",
            FailureKind::Refused => "the peer refused the connection",
            FailureKind::PeerGone => "the peer is gone",
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
        }
    }
}

debug_is_display!(Failure);

impl std::error::Error for Failure {}

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
}
