//! Address vectors, path records and queue pair attributes for the peer of an id.

use std::net::SocketAddr;

use rdma_sys::{
    RDMA_UDP_QKEY, ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_state, ibv_sa_path_rec,
};

use super::entry::Entry;
use super::{address, device};
use crate::engine::Errno;
use crate::verbs::attr::{MTU, PKEY, PORT};

/// Default ACK timeout of queue pairs, as an exponent: 4.096 us * 2^19, some two seconds, as in
/// Linux on RoCE.
pub(super) const ACK_TIMEOUT: u8 = 19;
/// Packet life time in path records, as the same kind of exponent: half the ACK timeout.
const PACKET_LIFE_TIME: u8 = ACK_TIMEOUT - 1;
/// Hop limit of packets.
const HOPS: u8 = 64;
/// 100 Gbit/s as an `ibv_rate`.
const RATE: u8 = 16;
/// The first multicast LID of InfiniBand.
const MULTICAST_LID: u16 = 0xc000;

fn ends(entry: &Entry) -> Result<(SocketAddr, SocketAddr), Errno> {
    Ok((entry.local.ok_or(Errno::INVAL)?, entry.peer.ok_or(Errno::INVAL)?))
}

/// The GID of an id's peer. The devices of this host know those of this host alone.
pub(super) fn gid_of_peer(is_far: bool, peer: &SocketAddr) -> Result<ibv_gid, Errno> {
    if is_far { Ok(ibv_gid { raw: address::gid_of(peer) }) } else { device::gid(peer).map(|(_, gid)| gid) }
}

/// The address vector of an id's peer.
pub(super) fn address_vector(entry: &Entry) -> Result<ibv_ah_attr, Errno> {
    let (local, peer) = ends(entry)?;
    let dgid = gid_of_peer(entry.is_far, &peer)?;
    vector(&local, dgid, entry.options.traffic_class, device::lid(&peer)?)
}

/// The address vector of a multicast group.
pub(super) fn group_vector(entry: &Entry, mgid: ibv_gid) -> Result<ibv_ah_attr, Errno> {
    vector(&entry.local.ok_or(Errno::INVAL)?, mgid, entry.options.traffic_class, multicast_lid())
}

/// The LID of multicast groups; 0 on RoCE, which has none.
pub(super) fn multicast_lid() -> u16 {
    if device::is_infiniband() == Ok(true) { MULTICAST_LID } else { 0 }
}

fn vector(local: &SocketAddr, dgid: ibv_gid, traffic_class: u8, dlid: u16) -> Result<ibv_ah_attr, Errno> {
    let (sgid_index, _) = device::gid(local)?;
    let infiniband = device::is_infiniband()?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route { dgid, flow_label: 0, sgid_index, hop_limit: HOPS, traffic_class },
        dlid,
        // RoCE has only global addresses.
        is_global: u8::from(!infiniband || dlid >= MULTICAST_LID),
        port_num: PORT,
        ..ibv_ah_attr::default()
    })
}

/// The path record of an id's peer.
pub(super) fn record(entry: &Entry) -> Result<ibv_sa_path_rec, Errno> {
    const EXACTLY: u8 = 2;
    let (local, peer) = ends(entry)?;
    Ok(ibv_sa_path_rec {
        dgid: gid_of_peer(entry.is_far, &peer)?,
        sgid: device::gid(&local)?.1,
        dlid: device::lid(&peer)?.to_be(),
        slid: device::lid(&local)?.to_be(),
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

/// The attributes and mask for the transition of an id's queue pair to `state`.
pub(super) fn qp_attributes(entry: &Entry, state: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
    type M = ibv_qp_attr_mask;
    type S = ibv_qp_state;
    let agreed = entry.agreed(state == S::IBV_QPS_INIT)?;
    let mut attr = ibv_qp_attr { qp_state: state, port_num: PORT, ..ibv_qp_attr::default() };
    let mask = match (state, agreed) {
        (S::IBV_QPS_INIT, None) if entry.is_datagram() => {
            attr.qkey = RDMA_UDP_QKEY;
            M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_QKEY
        }
        (S::IBV_QPS_RTR, None) if entry.is_datagram() => ibv_qp_attr_mask(0),
        (S::IBV_QPS_RTS, None) if entry.is_datagram() => M::IBV_QP_SQ_PSN,
        // Before the request is sent or received, the access rights of the peer are unknown.
        (S::IBV_QPS_INIT, None) => M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS,
        (S::IBV_QPS_INIT, Some(agreed)) => {
            let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            if agreed.responder_resources != 0 {
                access = access | ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
            }
            attr.qp_access_flags = access.0;
            M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS
        }
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
