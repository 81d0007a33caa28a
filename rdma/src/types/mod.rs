//! Values of the verbs interface as types: enumerations that keep unknown values, and addresses in
//! the right byte order.

mod access;
mod address;
mod c_enum;
mod capabilities;
mod completion;
mod foreign;
mod kind;
mod mtu;
mod path;
mod path_options;
mod qp;
mod reject;
mod state;
mod timer;
pub(crate) mod wire;

pub use access::RemoteAccess;
pub use address::{Gid, Guid, Lid, ParseGidError};
pub(crate) use c_enum::c_enum;
pub use capabilities::Capabilities;
pub use completion::{CqId, Opcode, SrqId, WcError, WcStatus};
pub use foreign::ForeignObject;
pub use kind::{AtomicCapability, GidKind, LinkLayer, NodeType, TransportType};
pub use mtu::Mtu;
pub use path::{Path, Route};
pub(crate) use path_options::{MAX_RETRIES, path_setters};
pub use path_options::{OptionLimit, PathOptions};
pub use qp::{Ece, QpAttrMask, QpState};
pub use reject::{RejectReason, WrongDevice};
pub use state::{PhysState, PortState};
pub use timer::{AckTimeout, RnrTimer};
pub use wire::WireError;
