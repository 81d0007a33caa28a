//! Reasons of failed connections: rejections by the peer, and errors of librdmacm.

use std::ffi::c_int;

use crate::errno;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::types::RejectReason;

impl RejectReason {
    /// Translates the status of a SIDR (datagram service) answer to the reason codes of
    /// connections.
    pub(super) fn from_sidr(status: i32) -> Self {
        match status {
            1 => Self::INVALID_SERVICE_ID,
            2 => Self::CONSUMER,
            3 => Self::NO_QUEUE_PAIR,
            4 => Self::REDIRECTED_MANAGER,
            5 => Self::INVALID_CLASS_VERSION,
            other => Self::from_raw(other),
        }
    }

    /// The error that the connecting side returns for this reason.
    #[must_use]
    pub fn to_error(self) -> Error {
        let kind = match self {
            Self::INVALID_SERVICE_ID => ErrorKind::NotListening,
            reason => ErrorKind::Rejected(reason),
        };
        Error::new(Verb::Connect, kind)
    }
}

/// Translates an `errno` of librdmacm.
pub(super) fn from_errno(operation: Verb, errno: i32) -> Error {
    let error = Error::from_errno(operation, errno);
    match (operation, error.errno()) {
        (_, Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN | libc::EHOSTDOWN)) => {
            error.with_kind(ErrorKind::NoRoute)
        }
        (Verb::BindAddr | Verb::ResolveAddr | Verb::ResolveRoute, Some(libc::ENODEV | libc::ENXIO)) => {
            error.with_kind(ErrorKind::NoRoute)
        }
        (_, Some(libc::EADDRINUSE)) => error.with_kind(ErrorKind::AddressInUse),
        // The kernel returns EINVAL when the connection is in the wrong state: one side has given
        // up.
        (Verb::InitQpAttr | Verb::Accept | Verb::Reject | Verb::Establish | Verb::Disconnect, Some(libc::EINVAL)) => {
            error.with_kind(ErrorKind::Disconnected)
        }
        (Verb::Connect, Some(libc::ECONNREFUSED)) => error.with_kind(ErrorKind::NotListening),
        (Verb::Connect, Some(libc::EACCES)) => error.with_kind(ErrorKind::Rejected(RejectReason::OTHER_USER)),
        (_, Some(libc::ENOTCONN | libc::ECONNRESET | libc::ECONNABORTED | libc::EPIPE)) => {
            error.with_kind(ErrorKind::Disconnected)
        }
        _ => error,
    }
}

/// Calls a function of librdmacm that returns 0, an `errno`, or -1 and sets `errno`.
pub(super) fn check(operation: Verb, call: impl FnOnce() -> c_int) -> Result<()> {
    errno::check(call).map_err(|errno| from_errno(operation, errno))
}

/// Translates the status of an event: a negative `errno`, or -1 if librdmacm failed and the `errno`
/// is lost.
pub(super) fn from_status(operation: Verb, status: i32) -> Error {
    match (operation, status) {
        // The kernel resolved the address to a device that librdmacm cannot open.
        (Verb::ResolveAddr, -1) => Error::new(operation, ErrorKind::NoRoute),
        (_, -1) => Error::new(operation, ErrorKind::Unknown),
        _ => from_errno(operation, status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_text() {
        assert_eq!(RejectReason::STALE_CONNECTION.to_string(), "stale connection");
        assert_eq!(RejectReason::from_raw(77).to_string(), "unknown (77)");
        assert_eq!(RejectReason::from_raw(8).to_error().kind(), ErrorKind::NotListening);
        let error = RejectReason::CONSUMER.to_error();
        assert_eq!(error.kind(), ErrorKind::Rejected(RejectReason::CONSUMER));
        assert_eq!(error.to_string(), "rdma_connect: rejected by the peer: by the program");
    }

    #[test]
    fn errors_of_addresses_are_told_apart_and_have_a_remedy() {
        let kind = |operation, errno| from_errno(operation, errno).kind();
        assert_eq!(kind(Verb::ResolveAddr, -libc::ENODEV), ErrorKind::NoRoute);
        assert_eq!(kind(Verb::ResolveAddr, libc::ENETUNREACH), ErrorKind::NoRoute);
        assert_eq!(kind(Verb::BindAddr, libc::EADDRNOTAVAIL), ErrorKind::NoRoute);
        assert_eq!(kind(Verb::BindAddr, libc::EADDRINUSE), ErrorKind::AddressInUse);
        assert_eq!(kind(Verb::Connect, -libc::ECONNREFUSED), ErrorKind::NotListening);
        let other_user = ErrorKind::Rejected(RejectReason::OTHER_USER);
        assert_eq!(kind(Verb::Connect, -libc::EACCES), other_user);
        assert_eq!(RejectReason::from_raw(-libc::EACCES).to_error().kind(), other_user);
        assert_eq!(kind(Verb::ResolveRoute, -libc::ETIMEDOUT), ErrorKind::Timeout);
        assert_eq!(kind(Verb::Connect, libc::ENODEV), ErrorKind::NoDevice);
        assert_eq!(from_status(Verb::ResolveAddr, -1).kind(), ErrorKind::NoRoute);
        assert_eq!(from_status(Verb::Connect, i32::MIN).kind(), ErrorKind::Unknown);
        for kind in [ErrorKind::NoRoute, ErrorKind::AddressInUse, ErrorKind::NotListening] {
            assert!(Error::new(Verb::Connect, kind).to_string().contains("; "), "{kind}");
        }
    }
}
