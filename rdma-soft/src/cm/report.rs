//! Events for the application, made from messages and from the notices of machines.

use std::sync::Arc;

use rdma_sys::{RDMA_UDP_QKEY, ibv_gid, rdma_cm_event_type as Code};

use super::channel::{Body, Conn, Datagram, Membership, Pending, Target};
use super::entry::Entry;
use super::machine::{Notice, reason};
use super::path;
use super::wire::{Message, SidrRep, Terms, room};
use crate::engine::Errno;
use crate::log::log;

/// The queue pair number of datagrams to a multicast group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Pads private data with zeroes to the size that the InfiniBand message has.
fn padded(mut private: Vec<u8>, room: usize) -> Vec<u8> {
    private.resize(room, 0);
    private
}

/// A peer's terms from the view of this side: the peer's initiator depth becomes our responder
/// resources, and the reverse.
fn mirrored(terms: Terms, room: usize) -> Terms {
    let (responder_resources, initiator_depth) = (terms.initiator_depth, terms.responder_resources);
    Terms { responder_resources, initiator_depth, private: padded(terms.private, room), ..terms }
}

/// The event of a request that arrived at a listener, for a new id.
pub(super) fn request(listener: Arc<Target>, id: Arc<Target>, message: Message) -> Pending {
    let body = match message {
        Message::Req(req) => Body::Conn(Conn { retry_count: req.retry_count, terms: mirrored(req.terms, room::REQ) }),
        Message::SidrReq(req) => {
            Body::Datagram(Datagram { private: padded(req.private, room::SIDR_REQ), ..Datagram::default() })
        }
        _ => Body::None,
    };
    Pending { target: listener, code: Code::RDMA_CM_EVENT_CONNECT_REQUEST, status: 0, new: Some(id), body }
}

/// The event for a notice of an id's machine.
pub(super) fn notice(entry: &Entry, notice: Notice) -> Pending {
    let conn = |private| Body::Conn(Conn { terms: Terms { private, ..Terms::default() }, ..Conn::default() });
    let datagram = |private| Datagram { private: padded(private, room::SIDR_REP), ..Datagram::default() };
    let (code, status, body) = match notice {
        Notice::Response(rep) => {
            let conn = Conn { retry_count: 0, terms: mirrored(rep.terms, room::REP) };
            (Code::RDMA_CM_EVENT_CONNECT_RESPONSE, 0, Body::Conn(conn))
        }
        Notice::Established => (Code::RDMA_CM_EVENT_ESTABLISHED, 0, conn(Vec::new())),
        Notice::Rejected(rej) => {
            if let (reason::INVALID_SERVICE_ID, Some(peer)) = (rej.reason, entry.peer) {
                let whose = if entry.is_far { "that host" } else { "this user and network namespace" };
                log!(INFO, %peer, "soft0: no process of {whose} listens there");
            }
            (Code::RDMA_CM_EVENT_REJECTED, rej.reason.into(), conn(padded(rej.private, room::REJ)))
        }
        // InfiniBand has no reason code for a listener of another user, so the status is a negative
        // error number, as with iWARP.
        Notice::OtherUser if entry.is_datagram() => {
            (Code::RDMA_CM_EVENT_UNREACHABLE, -libc::EACCES, Body::Datagram(datagram(Vec::new())))
        }
        Notice::OtherUser => (Code::RDMA_CM_EVENT_REJECTED, -libc::EACCES, conn(padded(Vec::new(), room::REJ))),
        Notice::Unreachable(status) => (Code::RDMA_CM_EVENT_UNREACHABLE, status, Body::None),
        Notice::NoDatagram(status, private) => {
            (Code::RDMA_CM_EVENT_UNREACHABLE, status.into(), Body::Datagram(datagram(private)))
        }
        Notice::Disconnected(status) => (Code::RDMA_CM_EVENT_DISCONNECTED, status, conn(Vec::new())),
        Notice::TimewaitExit => (Code::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, conn(Vec::new())),
        Notice::Datagram(SidrRep { qp_num, qkey, private, .. }) => match path::address_vector(entry) {
            Ok(ah_attr) => {
                let datagram = Datagram { ah_attr, qp_num, qkey, ..datagram(private) };
                (Code::RDMA_CM_EVENT_ESTABLISHED, 0, Body::Datagram(datagram))
            }
            Err(errno) => (Code::RDMA_CM_EVENT_UNREACHABLE, -errno.0, Body::None),
        },
    };
    Pending { target: Arc::clone(&entry.target), code, status, new: None, body }
}

/// The event for joining a multicast group.
pub(super) fn joined(entry: &Entry, membership: &Arc<Membership>) -> Result<Pending, Errno> {
    let ah_attr = path::group_vector(entry, ibv_gid { raw: membership.mgid })?;
    let datagram = Datagram { ah_attr, qp_num: MULTICAST_QPN, qkey: RDMA_UDP_QKEY, private: Vec::new() };
    Ok(Pending {
        target: Arc::clone(&entry.target),
        code: Code::RDMA_CM_EVENT_MULTICAST_JOIN,
        status: 0,
        new: None,
        body: Body::Multicast(Arc::clone(membership), Box::new(datagram)),
    })
}
