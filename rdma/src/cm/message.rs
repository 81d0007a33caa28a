//! The contents of connection messages: plain data.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;

use crate::error::Error;
use crate::types::{Gid, Lid, Path, RejectReason};

/// Bytes that came with a connection's messages.
///
/// On InfiniBand and RoCE the peer's bytes are padded with zeros to the length of the message (56
/// bytes with a request, 196 with an answer, 148 with a rejection; datagrams: 180, 136), so a
/// program that needs the length must send it among the bytes. On iWARP the length is the sender's.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct PrivateData(Box<[u8]>);

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for PrivateData {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for PrivateData {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({})", self.0.escape_ascii())
    }
}

/// Connection parameters that both sides agree on, from this side's point of view.
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConnectionParameters {
    /// How many reads and atomics the peer asks us to serve at a time.
    pub responder_resources: u8,
    /// How many reads and atomics the peer serves at a time.
    pub initiator_depth: u8,
    /// Whether the peer controls the flow of messages end to end.
    pub flow_control: bool,
    /// How often to retry when no answer comes; only a request carries this.
    pub retry_count: u8,
    /// How often to retry while the peer has no receive posted; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// The peer's queue pair number; 0 on iWARP.
    pub qpn: u32,
}

/// The peer's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Accepted {
    /// The peer's private data. Empty at the passive side, which has read the data in the request.
    pub private_data: PrivateData,
    /// The parameters agreed on.
    pub parameters: ConnectionParameters,
}

impl Accepted {
    /// An answer that did not come by the connection manager.
    #[must_use]
    pub fn new(private_data: PrivateData, parameters: ConnectionParameters) -> Self {
        Self { private_data, parameters }
    }
}

/// The peer's rejection of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason of the rejection.
    pub reason: RejectReason,
    /// The private data that the peer's program sent, if the program itself rejected.
    pub private_data: PrivateData,
}

impl Rejection {
    /// A rejection that did not come by the connection manager.
    #[must_use]
    pub fn new(reason: RejectReason, private_data: PrivateData) -> Self {
        Self { reason, private_data }
    }

    /// The error that the connecting side returns for this rejection.
    #[must_use]
    pub fn to_error(&self) -> Error {
        self.reason.to_error()
    }
}

/// The destination of datagrams, from a listener's answer.
#[doc(alias = "rdma_ud_param")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdPeer {
    /// The path to the peer, for an address handle, with the options of
    /// [`Id::set_path`](super::Id::set_path).
    pub path: Path,
    /// The peer's queue pair number.
    pub qpn: u32,
    /// The peer's Q_Key.
    pub qkey: u32,
    /// The peer's private data.
    pub private_data: PrivateData,
}

/// A multicast group that was joined.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastGroup {
    /// The group's address, as given to [`join_multicast`](super::Id::join_multicast).
    pub address: Option<SocketAddr>,
    /// The path to the group, for an address handle.
    pub path: Path,
    /// The group's GID: attach a queue pair to it.
    pub gid: Gid,
    /// The group's LID on InfiniBand.
    pub lid: Lid,
    /// The queue pair number that datagrams to a group carry.
    pub qpn: u32,
    /// The group's Q_Key.
    pub qkey: u32,
}
