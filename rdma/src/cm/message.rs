//! What the messages of a connection carry: plain data.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;

use crate::error::Error;
use crate::types::{Gid, Lid, Path, RejectReason};

/// Bytes that came with a connection's messages.
///
/// On InfiniBand and RoCE what a peer gave is filled up with zeros to the length of its message (56
/// bytes with a request, 196 with an answer, 148 with a rejection; datagrams: 180, 136): a length
/// that matters must be among the bytes. On iWARP it is as long as it was.
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

/// What both ends agree on, as seen from this one.
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionParameters {
    /// How many reads and atomics the peer wants us to serve at a time.
    pub responder_resources: u8,
    /// How many reads and atomics the peer serves at a time.
    pub initiator_depth: u8,
    /// Whether the peer controls the flow of messages end to end.
    pub flow_control: bool,
    /// How often to try again without an answer; of a request only.
    pub retry_count: u8,
    /// How often to try again while the peer has no receive posted; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// The peer's queue pair number; 0 on iWARP.
    pub qpn: u32,
}

/// What the peer's answer said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Accepted {
    /// What it said in its own words. Empty at the passive end, which has read it in the request.
    pub private_data: PrivateData,
    /// What was agreed on.
    pub parameters: ConnectionParameters,
}

/// The peer's no.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// What the program at the other end had to say, if it was that.
    pub private_data: PrivateData,
}

impl Rejection {
    /// As the error that it is for who wanted to connect.
    #[must_use]
    pub fn to_error(&self) -> Error {
        self.reason.to_error()
    }
}

/// Where to send datagrams: the answer of a listener.
#[doc(alias = "rdma_ud_param")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdPeer {
    /// The way there, for an address handle.
    pub path: Path,
    /// The peer's queue pair number.
    pub qpn: u32,
    /// The key that the peer's queue pair has.
    pub qkey: u32,
    /// What the peer had to say.
    pub private_data: PrivateData,
}

/// A multicast group that was joined.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastGroup {
    /// Its address, as it was given to [`join_multicast`](super::Id::join_multicast).
    pub address: Option<SocketAddr>,
    /// The way there, for an address handle.
    pub path: Path,
    /// Its GID: attach a queue pair to it.
    pub gid: Gid,
    /// Its LID on InfiniBand.
    pub lid: Lid,
    /// The queue pair number that datagrams to a group carry.
    pub qpn: u32,
    /// The group's key.
    pub qkey: u32,
}
