//! Reasons of failed connections.

use std::fmt;
use std::sync::Mutex;

use super::c_enum::c_enum;

c_enum! {
    /// The reason why the peer, or the kernel for the peer, rejected a connection: the
    /// specification's code on InfiniBand and RoCE, a negative `errno` on iWARP.
    RejectReason(i32) {
        /// The peer has no queue pair available.
        NO_QUEUE_PAIR = 1, "no queue pair available";
        /// The peer has no end-to-end context available.
        NO_EE_CONTEXT = 2, "no end-to-end context available";
        /// The peer lacks resources.
        NO_RESOURCES = 3, "no resources";
        /// The peer did not get our message in time.
        TIMEOUT = 4, "timeout";
        /// The request is not supported.
        UNSUPPORTED = 5, "unsupported request";
        /// The communication identifier is invalid.
        INVALID_COMMUNICATION_ID = 6, "invalid communication identifier";
        /// The communication instance is invalid.
        INVALID_COMMUNICATION_INSTANCE = 7, "invalid communication instance";
        /// No listener has this service; errors report `NotListening`.
        INVALID_SERVICE_ID = 8, "nobody listens";
        /// The transport type is not the service's.
        INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
        /// The queue pair's last connection has not ended at the peer: try again, or use another
        /// queue pair.
        STALE_CONNECTION = 10, "stale connection";
        /// The RD channel does not exist.
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
        /// Use the connection manager of another port.
        REDIRECTED_MANAGER = 24, "redirected to another connection manager";
        /// Use another port.
        REDIRECTED_PORT = 25, "redirected to another port";
        /// The MTU is wrong.
        INVALID_MTU = 26, "invalid MTU";
        /// The peer can serve fewer reads and atomics than were asked for.
        INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
        /// The peer's program rejected; its private data may say why.
        CONSUMER = 28, "by the program";
        /// The RNR retry count is wrong.
        INVALID_RNR_RETRY = 29, "invalid RNR retry count";
        /// The communication identifier is in use.
        DUPLICATE_COMMUNICATION_ID = 30, "duplicate communication identifier";
        /// The connection manager has another version.
        INVALID_CLASS_VERSION = 31, "invalid class version";
        /// The flow label is wrong.
        INVALID_FLOW_LABEL = 32, "invalid flow label";
        /// The alternate flow label is wrong.
        INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
        /// The peer does not accept our ECE options.
        VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
        /// iWARP: the connection was refused.
        REFUSED = -libc::ECONNREFUSED, "connection refused";
        /// iWARP: the connection was reset; some drivers report this when the peer's program
        /// rejected.
        RESET = -libc::ECONNRESET, "connection reset";
        /// soft0: a process of another user listens there, and may not be connected to this one.
        OTHER_USER = -libc::EACCES, "a process of another user listens there";
    }
}

/// The names of the device that a context or a queue pair is of, and of the one that the address of
/// an id belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WrongDevice(&'static Names);

#[derive(Debug, PartialEq, Eq)]
struct Names {
    open: String,
    found: String,
}

/// The names of all [`WrongDevice`]s. Errors are small and `Copy`, so names live as long as the
/// process; there are at most as many as pairs of devices.
static NAMES: Mutex<Vec<&'static Names>> = Mutex::new(Vec::new());

impl WrongDevice {
    pub(crate) fn new(open: &str, found: &str) -> Self {
        let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = names.iter().find(|known| known.open == open && known.found == found) {
            return Self(known);
        }
        let new: &'static Names = Box::leak(Box::new(Names { open: open.to_owned(), found: found.to_owned() }));
        names.push(new);
        Self(new)
    }

    getters! { |this|
        /// The name of the open device.
        open: &'static str = &this.0.open;
        /// The name of the device that the address belongs to.
        found: &'static str = &this.0.found;
    }
}

impl fmt::Display for WrongDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the address belongs to {}, and {} is open", self.found(), self.open())
    }
}

debug_by_methods!(WrongDevice: open, found);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_wrong_device_are_kept_once() {
        let wrong = WrongDevice::new("rxe0", "mlx5_0");
        assert_eq!(wrong.to_string(), "the address belongs to mlx5_0, and rxe0 is open");
        assert!(std::ptr::eq(wrong.0, WrongDevice::new("rxe0", "mlx5_0").0));
    }
}
