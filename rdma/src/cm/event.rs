//! Events: what librdmacm reported, copied out and typed. Numbers cite the invariants of [`super`].

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;

use rdma_sys::{rdma_cm_event, rdma_cm_event_type as Code};

use super::channel::{IdKey, Known};
use super::reason;
use super::request::ConnectRequest;
use crate::error::{Error, ErrorKind, Operation};
use crate::qp::{Rc, Ud};
use crate::types::{Gid, Lid, Path, RejectReason};

/// Bytes that came with a connection's messages.
///
/// On InfiniBand and RoCE what a peer gave is filled up with zeros to the length of its message (56 bytes with a request, 196 with an
/// answer, 148 with a rejection; datagrams: 180, 136): a length that matters must be among the bytes. On iWARP it is as long as
/// it was.
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

/// Something happened to an id. Already acknowledged.
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// To which id; of a request, the listener that it came to.
    pub id: IdKey,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[doc(alias = "rdma_cm_event_type")]
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The destination is known: resolve the route next.
    AddrResolved,
    /// There is no way to the destination from here, or no device.
    AddrError(Error),
    /// The route is known: connect next.
    RouteResolved,
    /// There is no route.
    RouteError(Error),
    /// Somebody wants to connect.
    ConnectRequest(ConnectRequest<Rc>),
    /// Somebody wants to know where to send datagrams.
    UdConnectRequest(ConnectRequest<Ud>),
    /// The peer has accepted: [`establish`](super::Id::establish) the connection. Not on iWARP.
    ConnectResponse(Accepted),
    /// The connection failed on its way.
    ConnectError(Error),
    /// The peer did not answer.
    Unreachable(Error),
    /// The peer, or its host, said no.
    Rejected(Rejection),
    /// There is a connection.
    Established(Accepted),
    /// The peer says where to send datagrams.
    UdEstablished(UdPeer),
    /// The connection has ended.
    Disconnected,
    /// The device is being removed: drop everything of it.
    DeviceRemoval,
    /// A group was joined.
    MulticastJoined(MulticastGroup),
    /// A group was not joined, or was lost.
    MulticastError {
        /// Its address, as it was given to [`join_multicast`](super::Id::join_multicast).
        group: Option<SocketAddr>,
        /// Why.
        error: Error,
    },
    /// The network interface has another hardware address now, so that the connection may stand still.
    AddrChange,
    /// The queue pair of an ended connection can be used again.
    TimewaitExit,
    /// What this version of the crate does not know.
    Unknown {
        /// The event's code.
        event: u32,
        /// Its status.
        status: i32,
    },
}

/// Copies what the peer said, of the events that carry it: in others librdmacm has something else in its place.
///
/// # Safety
///
/// `raw` is the copy of an event that was taken and not acknowledged yet, so that what it points to lives (4).
pub(super) unsafe fn private_data(raw: &rdma_cm_event) -> PrivateData {
    match raw.event {
        Code::RDMA_CM_EVENT_CONNECT_REQUEST
        | Code::RDMA_CM_EVENT_CONNECT_RESPONSE
        | Code::RDMA_CM_EVENT_ESTABLISHED
        | Code::RDMA_CM_EVENT_REJECTED
        | Code::RDMA_CM_EVENT_UNREACHABLE => {}
        _ => return PrivateData::default(),
    }
    // SAFETY: integers and pointers, which may have any value; datagram events begin with the same two fields (below).
    let conn = unsafe { raw.param.conn };
    if conn.private_data.is_null() || conn.private_data_len == 0 {
        return PrivateData::default();
    }
    // SAFETY: librdmacm points to as many bytes as it says, part of the event, which lives by the caller's promise. Nobody
    // writes to them.
    let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
    bytes.into()
}

const _: () = {
    use rdma_sys::{rdma_conn_param as Conn, rdma_ud_param as Ud};
    assert!(std::mem::offset_of!(Conn, private_data) == std::mem::offset_of!(Ud, private_data));
    assert!(std::mem::offset_of!(Conn, private_data_len) == std::mem::offset_of!(Ud, private_data_len));
};

/// What a connection's event says besides.
pub(super) fn parameters(raw: &rdma_cm_event) -> ConnectionParameters {
    // SAFETY: integers and pointers, which may have any value.
    let conn = unsafe { raw.param.conn };
    ConnectionParameters {
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        flow_control: conn.flow_control != 0,
        retry_count: conn.retry_count,
        rnr_retry_count: conn.rnr_retry_count,
        srq: conn.srq != 0,
        qpn: conn.qp_num,
    }
}

/// The event's meaning for the id; not for requests, which make one.
pub(super) fn decode(raw: &rdma_cm_event, private_data: PrivateData, known: &Known) -> EventKind {
    let accepted = |private_data| Accepted { private_data, parameters: parameters(raw) };
    match raw.event {
        Code::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddrResolved,
        Code::RDMA_CM_EVENT_ADDR_ERROR => EventKind::AddrError(reason::from_status(Operation::ResolveAddr, raw.status)),
        Code::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
        Code::RDMA_CM_EVENT_ROUTE_ERROR => {
            EventKind::RouteError(reason::from_status(Operation::ResolveRoute, raw.status))
        }
        Code::RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::ConnectResponse(accepted(private_data)),
        Code::RDMA_CM_EVENT_CONNECT_ERROR => {
            EventKind::ConnectError(reason::from_status(Operation::Connect, raw.status))
        }
        // The answer to a datagram request that is no.
        Code::RDMA_CM_EVENT_UNREACHABLE if known.datagram && raw.status > 0 => {
            EventKind::Rejected(Rejection { reason: RejectReason::from_sidr(raw.status), private_data })
        }
        Code::RDMA_CM_EVENT_UNREACHABLE => {
            let error = reason::from_status(Operation::Connect, raw.status);
            EventKind::Unreachable(match error.kind() {
                ErrorKind::Unknown => Error::new(Operation::Connect, ErrorKind::NoRoute),
                _ => error,
            })
        }
        Code::RDMA_CM_EVENT_REJECTED => {
            EventKind::Rejected(Rejection { reason: RejectReason::from_raw(raw.status), private_data })
        }
        Code::RDMA_CM_EVENT_ESTABLISHED if known.datagram => {
            // SAFETY: integers and pointers, which may have any value.
            let ud = unsafe { raw.param.ud };
            EventKind::UdEstablished(UdPeer {
                path: Path::from_raw(&ud.ah_attr),
                qpn: ud.qp_num,
                qkey: ud.qkey,
                private_data,
            })
        }
        Code::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established(accepted(private_data)),
        Code::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        Code::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
        Code::RDMA_CM_EVENT_MULTICAST_JOIN => {
            // SAFETY: integers and pointers, which may have any value.
            let ud = unsafe { raw.param.ud };
            EventKind::MulticastJoined(MulticastGroup {
                address: group(raw, known),
                path: Path::from_raw(&ud.ah_attr),
                gid: Gid::from_raw(ud.ah_attr.grh.dgid),
                lid: Lid(ud.ah_attr.dlid),
                qpn: ud.qp_num,
                qkey: ud.qkey,
            })
        }
        Code::RDMA_CM_EVENT_MULTICAST_ERROR => EventKind::MulticastError {
            group: group(raw, known),
            error: reason::from_status(Operation::JoinMulticast, raw.status),
        },
        Code::RDMA_CM_EVENT_ADDR_CHANGE => EventKind::AddrChange,
        Code::RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
        Code(event) => EventKind::Unknown { event, status: raw.status },
    }
}

/// Which group: librdmacm gives back what it was joined with in place of private data.
fn group(raw: &rdma_cm_event, known: &Known) -> Option<SocketAddr> {
    // SAFETY: integers and pointers, which may have any value.
    let number = unsafe { raw.param.ud }.private_data.addr() as u64;
    known.groups.iter().find(|(known, _)| *known == number).map(|&(_, address)| address)
}
