//! Values of the verbs interface as types: enumerations that keep unknown values, and addresses in
//! the right byte order.

mod address;
mod c_enum;
mod capabilities;
mod completion;
mod constants;
mod path;
mod qp;
mod reject;
mod timer;
pub(crate) mod wire;

pub use address::{Gid, Guid, Lid, ParseGidError};
pub(crate) use c_enum::c_enum;
pub use capabilities::Capabilities;
pub use completion::{CqId, Opcode, SrqId, WcError, WcStatus};
pub use constants::{
    AtomicCapability, GidKind, LinkLayer, Mtu, NodeType, PhysState, PortState, RemoteAccess, TransportType,
};
pub use path::{Path, Route};
pub use qp::{Ece, QpAttrMask, QpState};
pub use reject::{RejectReason, WrongDevice};
pub use timer::{AckTimeout, RnrTimer};
pub use wire::WireError;
