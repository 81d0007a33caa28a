//! Why a connection did not come about: reasons of rejection, errors of librdmacm, and the two devices of a wrong address.

use std::fmt;
use std::sync::Mutex;

use crate::error::{Error, ErrorKind, Operation};
use crate::types::c_enum;

c_enum! {
    /// Why the peer, or the kernel on its behalf, rejected a connection: the specification's code on InfiniBand and RoCE, a
    /// negative `errno` on iWARP.
    RejectReason(i32) {
        /// No queue pair is to be had.
        NO_QUEUE_PAIR = 1, "no queue pair available";
        /// No end-to-end context is to be had.
        NO_EE_CONTEXT = 2, "no end-to-end context available";
        /// No resources.
        NO_RESOURCES = 3, "no resources";
        /// The peer waited too long for us.
        TIMEOUT = 4, "timeout";
        /// The request is not supported.
        UNSUPPORTED = 5, "unsupported request";
        /// An identifier of the communication is wrong.
        INVALID_COMMUNICATION_ID = 6, "invalid communication identifier";
        /// The instance of the communication is wrong.
        INVALID_COMMUNICATION_INSTANCE = 7, "invalid communication instance";
        /// Nobody listens at this service; errors say `NotListening`.
        INVALID_SERVICE_ID = 8, "nobody listens";
        /// The transport is not the service's.
        INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
        /// The queue pair's last connection is not over at the peer: try again, or take another queue pair.
        STALE_CONNECTION = 10, "stale connection";
        /// There is no such RD channel.
        RD_CHANNEL_DOES_NOT_EXIST = 11, "RD channel does not exist";
        /// The GID is not the peer's.
        INVALID_GID = 12, "invalid GID";
        /// The LID is not the peer's.
        INVALID_LID = 13, "invalid LID";
        /// The service level is wrong.
        INVALID_SERVICE_LEVEL = 14, "invalid service level";
        /// The traffic class is wrong.
        INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
        /// The hop limit is wrong.
        INVALID_HOP_LIMIT = 16, "invalid hop limit";
        /// The packet rate is wrong.
        INVALID_PACKET_RATE = 17, "invalid packet rate";
        /// The alternate GID is not the peer's.
        INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
        /// The alternate LID is not the peer's.
        INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
        /// The alternate service level is wrong.
        INVALID_ALTERNATE_SERVICE_LEVEL = 20, "invalid alternate service level";
        /// The alternate traffic class is wrong.
        INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
        /// The alternate hop limit is wrong.
        INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
        /// The alternate packet rate is wrong.
        INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
        /// Ask another port's connection manager.
        REDIRECTED_MANAGER = 24, "redirected to another connection manager";
        /// Ask another port.
        REDIRECTED_PORT = 25, "redirected to another port";
        /// The MTU is wrong.
        INVALID_MTU = 26, "invalid MTU";
        /// Fewer reads and atomics can be served than were asked for.
        INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
        /// The program at the other end said no; its private data may say why.
        CONSUMER = 28, "by the program";
        /// The RNR retry count is wrong.
        INVALID_RNR_RETRY = 29, "invalid RNR retry count";
        /// The identifier of the communication is in use.
        DUPLICATE_COMMUNICATION_ID = 30, "duplicate communication identifier";
        /// The connection manager's version is another.
        INVALID_CLASS_VERSION = 31, "invalid class version";
        /// The flow label is wrong.
        INVALID_FLOW_LABEL = 32, "invalid flow label";
        /// The alternate flow label is wrong.
        INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
        /// The peer does not take our enhanced connection options.
        VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
        /// iWARP: the connection was refused.
        REFUSED = -libc::ECONNREFUSED, "connection refused";
        /// iWARP: the connection was reset; some drivers say so when the program at the other end said no.
        RESET = -libc::ECONNRESET, "connection reset";
    }
}

impl RejectReason {
    /// What the answer to a datagram service request says, in the codes of connections.
    pub(super) fn from_sidr(status: i32) -> Self {
        match status {
            1 => Self::INVALID_SERVICE_ID,
            2 => Self::CONSUMER,
            3 => Self::NO_QUEUE_PAIR,
            4 => Self::REDIRECTED_MANAGER,
            5 => Self::INVALID_CLASS_VERSION,
            other => Self(other),
        }
    }

    /// The error that this is for who wanted to connect.
    #[must_use]
    pub fn to_error(self) -> Error {
        let kind = match self {
            Self::INVALID_SERVICE_ID => ErrorKind::NotListening,
            reason => ErrorKind::Rejected(reason),
        };
        Error::new(Operation::Connect, kind)
    }
}

/// The open device, and the one that an address belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WrongDevice(&'static Names);

#[derive(Debug, PartialEq, Eq)]
struct Names {
    open: String,
    found: String,
}

/// Errors are small and `Copy`, so names live as long as the process. There are as many as pairs of devices.
static NAMES: Mutex<Vec<&'static Names>> = Mutex::new(Vec::new());

impl WrongDevice {
    pub(super) fn new(open: &str, found: &str) -> Self {
        let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = names.iter().find(|known| known.open == open && known.found == found) {
            return Self(known);
        }
        let new: &'static Names = Box::leak(Box::new(Names { open: open.to_owned(), found: found.to_owned() }));
        names.push(new);
        Self(new)
    }

    /// The name of the device that is open.
    #[must_use]
    pub fn open(&self) -> &'static str {
        &self.0.open
    }

    /// The name of the device that the address belongs to.
    #[must_use]
    pub fn found(&self) -> &'static str {
        &self.0.found
    }
}

impl fmt::Display for WrongDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the address belongs to {}, and {} is open", self.found(), self.open())
    }
}

impl fmt::Debug for WrongDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrongDevice").field("open", &self.open()).field("found", &self.found()).finish()
    }
}

/// What an `errno` means for the connection manager.
pub(super) fn from_errno(operation: Operation, errno: i32) -> Error {
    let error = Error::from_errno(operation, errno);
    match (operation, error.errno()) {
        (_, Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN | libc::EHOSTDOWN)) => {
            error.with_kind(ErrorKind::NoRoute)
        }
        (Operation::BindAddr | Operation::ResolveAddr | Operation::ResolveRoute, Some(libc::ENODEV | libc::ENXIO)) => {
            error.with_kind(ErrorKind::NoRoute)
        }
        (_, Some(libc::EADDRINUSE)) => error.with_kind(ErrorKind::AddressInUse),
        // The kernel's answer where the connection is not in the right state: an end has given up.
        (
            Operation::InitQpAttr
            | Operation::Accept
            | Operation::Reject
            | Operation::Establish
            | Operation::Disconnect,
            Some(libc::EINVAL),
        ) => error.with_kind(ErrorKind::Disconnected),
        (Operation::Connect, Some(libc::ECONNREFUSED)) => error.with_kind(ErrorKind::NotListening),
        (_, Some(libc::ENOTCONN | libc::ECONNRESET | libc::ECONNABORTED | libc::EPIPE)) => {
            error.with_kind(ErrorKind::Disconnected)
        }
        _ => error,
    }
}

/// The calling thread's `errno`.
pub(super) fn last(operation: Operation) -> Error {
    from_errno(operation, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// The status of an event: a negative `errno`, or -1 where librdmacm failed and the `errno` is lost.
pub(super) fn from_status(operation: Operation, status: i32) -> Error {
    match (operation, status) {
        // Where the kernel resolved the address to something that librdmacm cannot open.
        (Operation::ResolveAddr, -1) => Error::new(operation, ErrorKind::NoRoute),
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
        assert_eq!(kind(Operation::ResolveAddr, -libc::ENODEV), ErrorKind::NoRoute);
        assert_eq!(kind(Operation::ResolveAddr, libc::ENETUNREACH), ErrorKind::NoRoute);
        assert_eq!(kind(Operation::BindAddr, libc::EADDRNOTAVAIL), ErrorKind::NoRoute);
        assert_eq!(kind(Operation::BindAddr, libc::EADDRINUSE), ErrorKind::AddressInUse);
        assert_eq!(kind(Operation::Connect, -libc::ECONNREFUSED), ErrorKind::NotListening);
        assert_eq!(kind(Operation::ResolveRoute, -libc::ETIMEDOUT), ErrorKind::Timeout);
        assert_eq!(kind(Operation::Connect, libc::ENODEV), ErrorKind::NoDevice);
        assert_eq!(from_status(Operation::ResolveAddr, -1).kind(), ErrorKind::NoRoute);
        assert_eq!(from_status(Operation::Connect, i32::MIN).kind(), ErrorKind::Unknown);
        for kind in [ErrorKind::NoRoute, ErrorKind::AddressInUse, ErrorKind::NotListening] {
            assert!(Error::new(Operation::Connect, kind).to_string().contains("; "), "{kind}");
        }
    }

    #[test]
    fn a_wrong_device_names_both() {
        let error = Error::new(Operation::ResolveAddr, ErrorKind::WrongDevice(WrongDevice::new("rxe0", "mlx5_0")));
        let text = error.to_string();
        assert!(text.contains("mlx5_0") && text.contains("rxe0 is open"), "{text}");
        let again = WrongDevice::new("rxe0", "mlx5_0");
        assert!(std::ptr::eq(again.0, WrongDevice::new("rxe0", "mlx5_0").0), "names are kept once");
    }
}
