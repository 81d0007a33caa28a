//! Why connections do not come about.

use std::fmt;
use std::sync::Mutex;

use super::c_enum::c_enum;

c_enum! {
    /// Why the peer, or the kernel on its behalf, rejected a connection: the specification's code
    /// on InfiniBand and RoCE, a negative `errno` on iWARP.
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
        /// The queue pair's last connection is not over at the peer: try again, or take another
        /// queue pair.
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
        /// iWARP: the connection was reset; some drivers say so when the program at the other end
        /// said no.
        RESET = -libc::ECONNRESET, "connection reset";
        /// soft0: a process of another user listens there, with which it does not connect this one.
        OTHER_USER = -libc::EACCES, "a process of another user listens there";
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

/// Errors are small and `Copy`, so names live as long as the process. There are as many as pairs of
/// devices.
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
        /// The name of the device that is open.
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
