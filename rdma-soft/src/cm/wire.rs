//! From what the machine tells and what messages say to what applications read: events, address vectors, path records.

use std::net::SocketAddr;
use std::sync::Arc;

use rdma_sys::{
    RDMA_UDP_QKEY, ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_state, ibv_sa_path_rec, rdma_cm_event_type,
};

use super::channel::{Body, Conn, Datagram, Membership, Pending, Subject};
use super::device;
use super::entry::Entry;
use super::machine::Told;
use super::message::{Message, SidrRep, Terms, room};
use crate::engine::Errno;
use crate::verbs::attr::{LID, MTU, PKEY, PORT};

type Event = rdma_cm_event_type;

/// The time for an acknowledgement that queue pairs get, as an exponent: 4.096 us * 2^19, some two seconds. Linux has it on RoCE.
pub(super) const ACK_TIMEOUT: u8 = 19;
/// The same of a packet's life, in path records.
const PACKET_LIFE_TIME: u8 = ACK_TIMEOUT - 1;
/// The hops that a packet may take.
const HOPS: u8 = 64;
/// As `ibv_rate`: 100 Gbit/s.
const RATE: u8 = 16;
/// Where a multicast group's packets go.
const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// The first multicast LID, on InfiniBand.
const MULTICAST_LID: u16 = 0xc000;

/// Private data as InfiniBand's messages carry it: the whole room, zeroes behind what the peer has given.
fn padded(mut private: Vec<u8>, room: usize) -> Vec<u8> {
    private.resize(room, 0);
    private
}

/// A peer's terms as this end has them: how many of the peer's requests we may have to hold is how many it may have under way.
fn mirrored(terms: Terms, room: usize) -> Terms {
    let (responder_resources, initiator_depth) = (terms.initiator_depth, terms.responder_resources);
    Terms { responder_resources, initiator_depth, private: padded(terms.private, room), ..terms }
}

/// The event of a request that has come to a listener.
pub(super) fn request(listener: Arc<Subject>, id: Arc<Subject>, message: Message) -> Pending {
    let body = match message {
        Message::Req(req) => {
            Body::Request { id, conn: Conn { retry_count: req.retry_count, terms: mirrored(req.terms, room::REQ) } }
        }
        Message::SidrReq(req) => {
            Body::DatagramRequest { id, private: padded(req.private, room::SIDR_REQ).into_boxed_slice() }
        }
        _ => Body::None,
    };
    Pending { subject: listener, code: Event::RDMA_CM_EVENT_CONNECT_REQUEST, status: 0, body }
}

/// The event for what an id's machine tells.
pub(super) fn told(entry: &Entry, told: Told) -> Pending {
    let conn = |private| Body::Conn(Conn { terms: Terms { private, ..Terms::default() }, ..Conn::default() });
    let (code, status, body) = match told {
        Told::Response(rep) => {
            let conn = Conn { retry_count: 0, terms: mirrored(rep.terms, room::REP) };
            (Event::RDMA_CM_EVENT_CONNECT_RESPONSE, 0, Body::Conn(conn))
        }
        Told::Established => (Event::RDMA_CM_EVENT_ESTABLISHED, 0, conn(Vec::new())),
        Told::Rejected(rej) => (Event::RDMA_CM_EVENT_REJECTED, rej.reason.into(), conn(padded(rej.private, room::REJ))),
        Told::Unreachable(status) => (Event::RDMA_CM_EVENT_UNREACHABLE, status, Body::None),
        Told::NoDatagram(status, private) => {
            let private = padded(private, room::SIDR_REP).into_boxed_slice();
            let refusal = Datagram { ah_attr: ibv_ah_attr::default(), qp_num: 0, qkey: 0, private };
            (Event::RDMA_CM_EVENT_UNREACHABLE, status.into(), Body::Datagram(refusal))
        }
        Told::Disconnected(status) => (Event::RDMA_CM_EVENT_DISCONNECTED, status, conn(Vec::new())),
        Told::TimewaitExit => (Event::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, conn(Vec::new())),
        Told::Datagram(SidrRep { qp_num, qkey, private, .. }) => {
            let private = padded(private, room::SIDR_REP).into_boxed_slice();
            match address_vector(entry) {
                Ok(ah_attr) => {
                    let datagram = Datagram { ah_attr, qp_num, qkey, private };
                    (Event::RDMA_CM_EVENT_ESTABLISHED, 0, Body::Datagram(datagram))
                }
                Err(errno) => (Event::RDMA_CM_EVENT_UNREACHABLE, -errno.0, Body::None),
            }
        }
    };
    Pending { subject: Arc::clone(&entry.subject), code, status, body }
}

fn ends(entry: &Entry) -> Result<(SocketAddr, SocketAddr), Errno> {
    Ok((entry.local.ok_or(Errno::INVAL)?, entry.peer.ok_or(Errno::INVAL)?))
}

/// The way to an id's peer.
pub(super) fn address_vector(entry: &Entry) -> Result<ibv_ah_attr, Errno> {
    let (local, peer) = ends(entry)?;
    let (_, dgid) = device::gid(&peer)?;
    vector(&local, dgid, entry.options.traffic_class, LID)
}

fn vector(local: &SocketAddr, dgid: ibv_gid, traffic_class: u8, dlid: u16) -> Result<ibv_ah_attr, Errno> {
    let (sgid_index, _) = device::gid(local)?;
    let infiniband = device::is_infiniband()?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route { dgid, flow_label: 0, sgid_index, hop_limit: HOPS, traffic_class },
        dlid: if infiniband { dlid } else { 0 },
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        // RoCE has no other addresses.
        is_global: u8::from(!infiniband || dlid >= MULTICAST_LID),
        port_num: PORT,
    })
}

/// The LID of multicast groups: RoCE has none.
pub(super) fn multicast_lid() -> u16 {
    match device::is_infiniband() {
        Ok(true) => MULTICAST_LID,
        _ => 0,
    }
}

/// The event of a group that was joined.
pub(super) fn joined(entry: &Entry, membership: &Arc<Membership>) -> Result<Pending, Errno> {
    let local = entry.local.ok_or(Errno::INVAL)?;
    let dgid = ibv_gid { raw: membership.mgid };
    let ah_attr = vector(&local, dgid, entry.options.traffic_class, MULTICAST_LID)?;
    let datagram = Datagram { ah_attr, qp_num: MULTICAST_QPN, qkey: RDMA_UDP_QKEY, private: Box::default() };
    Ok(Pending {
        subject: Arc::clone(&entry.subject),
        code: Event::RDMA_CM_EVENT_MULTICAST_JOIN,
        status: 0,
        body: Body::Multicast(Arc::clone(membership), Box::new(datagram)),
    })
}

/// The path to an id's peer.
pub(super) fn path(entry: &Entry) -> Result<ibv_sa_path_rec, Errno> {
    const EXACTLY: u8 = 2;
    let (local, peer) = ends(entry)?;
    let lid = if device::is_infiniband()? { LID.to_be() } else { 0 };
    Ok(ibv_sa_path_rec {
        dgid: device::gid(&peer)?.1,
        sgid: device::gid(&local)?.1,
        dlid: lid,
        slid: lid,
        hop_limit: HOPS,
        traffic_class: entry.options.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        mtu_selector: EXACTLY,
        mtu: u8::try_from(MTU.0).unwrap_or(0),
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: entry.options.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1)),
        ..ibv_sa_path_rec::default()
    })
}

/// The attributes that take an id's queue pair to a state, and their mask.
pub(super) fn qp_attributes(entry: &Entry, state: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
    type M = ibv_qp_attr_mask;
    type S = ibv_qp_state;
    let agreed = entry.agreed(state == S::IBV_QPS_INIT)?;
    let mut attr = ibv_qp_attr { qp_state: state, port_num: PORT, pkey_index: 0, ..ibv_qp_attr::default() };
    let mask = match (state, agreed) {
        (S::IBV_QPS_INIT, None) if entry.is_datagram() => {
            attr.qkey = RDMA_UDP_QKEY;
            M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_QKEY
        }
        // Before the request nothing is known of what the peer may do.
        (S::IBV_QPS_INIT, None) => M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS,
        (S::IBV_QPS_INIT, Some(agreed)) => {
            let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            if agreed.responder_resources != 0 {
                access = access | ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
            }
            attr.qp_access_flags = access.0;
            M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS
        }
        (S::IBV_QPS_RTR, None) if entry.is_datagram() => ibv_qp_attr_mask(0),
        (S::IBV_QPS_RTS, None) if entry.is_datagram() => M::IBV_QP_SQ_PSN,
        (S::IBV_QPS_RTR, Some(agreed)) => {
            attr.ah_attr = address_vector(entry)?;
            attr.ah_attr.grh.traffic_class = agreed.traffic_class;
            attr.path_mtu = MTU;
            attr.dest_qp_num = agreed.remote_qpn;
            attr.rq_psn = agreed.rq_psn;
            attr.max_dest_rd_atomic = agreed.responder_resources;
            M::IBV_QP_AV
                | M::IBV_QP_PATH_MTU
                | M::IBV_QP_DEST_QPN
                | M::IBV_QP_RQ_PSN
                | M::IBV_QP_MAX_DEST_RD_ATOMIC
                | M::IBV_QP_MIN_RNR_TIMER
        }
        (S::IBV_QPS_RTS, Some(agreed)) => {
            attr.timeout = entry.options.ack_timeout.unwrap_or(agreed.ack_timeout);
            attr.retry_cnt = agreed.retry_count;
            attr.rnr_retry = agreed.rnr_retry_count;
            attr.sq_psn = agreed.sq_psn;
            attr.max_rd_atomic = agreed.initiator_depth;
            M::IBV_QP_TIMEOUT
                | M::IBV_QP_RETRY_CNT
                | M::IBV_QP_RNR_RETRY
                | M::IBV_QP_SQ_PSN
                | M::IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => return Err(Errno::INVAL),
    };
    Ok((attr, mask | M::IBV_QP_STATE))
}
