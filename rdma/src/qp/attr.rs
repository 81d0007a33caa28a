//! Attributes of queue pairs, and which of them each change of state wants.

use std::fmt;

use rdma_sys::{ibv_ah_attr, ibv_global_route, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use crate::types::{AckTimeout, Gid, Lid, Mtu, RemoteAccess, RnrTimer, c_enum};

c_enum! {
    /// The state of a queue pair.
    #[doc(alias = "ibv_qp_state")]
    QpState(u32) {
        /// New, or reset: nothing can be posted.
        RESET = ibv_qp_state::IBV_QPS_RESET.0, "RESET";
        /// Bound to a port: receives can be posted.
        INIT = ibv_qp_state::IBV_QPS_INIT.0, "INIT";
        /// Ready to receive: messages are taken.
        RTR = ibv_qp_state::IBV_QPS_RTR.0, "RTR";
        /// Ready to send.
        RTS = ibv_qp_state::IBV_QPS_RTS.0, "RTS";
        /// The send queue is draining or drained.
        SQD = ibv_qp_state::IBV_QPS_SQD.0, "SQD";
        /// The send queue failed (not on reliable transports).
        SQE = ibv_qp_state::IBV_QPS_SQE.0, "SQE";
        /// Failed: all requests are flushed.
        ERR = ibv_qp_state::IBV_QPS_ERR.0, "ERR";
        /// Not known.
        UNKNOWN = ibv_qp_state::IBV_QPS_UNKNOWN.0, "UNKNOWN";
    }
}

macro_rules! masks {
    ($($(#[doc = $doc:literal])* $name:ident = $raw:ident;)*) => {
        bitflags::bitflags! {
            /// A set of queue pair attributes.
            #[doc(alias = "ibv_qp_attr_mask")]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub struct QpAttrMask: u32 { $($(#[doc = $doc])* const $name = ibv_qp_attr_mask::$raw.0;)* }
        }
    };
}

masks! {
    /// The state to go to.
    STATE = IBV_QP_STATE;
    /// The state that the queue pair is assumed to be in.
    CUR_STATE = IBV_QP_CUR_STATE;
    /// Whether to raise an event when the send queue is drained.
    EN_SQD_ASYNC_NOTIFY = IBV_QP_EN_SQD_ASYNC_NOTIFY;
    /// What the peer may do.
    ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS;
    /// The partition key's index.
    PKEY_INDEX = IBV_QP_PKEY_INDEX;
    /// The port.
    PORT = IBV_QP_PORT;
    /// The queue key of datagrams.
    QKEY = IBV_QP_QKEY;
    /// The path to the peer.
    AV = IBV_QP_AV;
    /// The path's MTU.
    PATH_MTU = IBV_QP_PATH_MTU;
    /// The acknowledgement timeout.
    TIMEOUT = IBV_QP_TIMEOUT;
    /// How often to try again without an answer.
    RETRY_CNT = IBV_QP_RETRY_CNT;
    /// How often to try again when the peer has no receive posted.
    RNR_RETRY = IBV_QP_RNR_RETRY;
    /// The first packet's number, receiving.
    RQ_PSN = IBV_QP_RQ_PSN;
    /// Reads and atomics outstanding as the requester.
    MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC;
    /// The alternate path.
    ALT_PATH = IBV_QP_ALT_PATH;
    /// How long the peer shall wait when no receive is posted.
    MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER;
    /// The first packet's number, sending.
    SQ_PSN = IBV_QP_SQ_PSN;
    /// Reads and atomics in service as the responder.
    MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC;
    /// The state of path migration.
    PATH_MIG_STATE = IBV_QP_PATH_MIG_STATE;
    /// The sizes of the queues.
    CAP = IBV_QP_CAP;
    /// The peer's queue pair number.
    DEST_QPN = IBV_QP_DEST_QPN;
    /// The limit of the sending rate.
    RATE_LIMIT = IBV_QP_RATE_LIMIT;
}

impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// The path to a peer: of a connection, or for an [`AddressHandle`](crate::AddressHandle).
///
/// # Examples
///
/// ```
/// use rdma::{Path, Route};
/// let route = Route { gid: "::ffff:192.0.2.7".parse()?, source_index: 1, hop_limit: 64, ..Route::default() };
/// let path = Path { port: 1, route: Some(route), ..Path::default() };
/// assert_eq!(Path::from_raw(&path.to_raw()), path);
/// # Ok::<(), rdma::ParseGidError>(())
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path {
    /// The port to leave by.
    pub port: u8,
    /// The peer's LID; 0 on Ethernet.
    pub lid: Lid,
    /// The route by GID: always on Ethernet, and between subnets.
    pub route: Option<Route>,
    /// The service level: 0 to 15.
    pub service_level: u8,
    /// What to add to our own LID: which of a port's LIDs it leaves by, on InfiniBand.
    pub source_path_bits: u8,
    /// The most that the way there takes (`ibv_rate`); 0: as much as the port gives.
    pub static_rate: u8,
}

/// The part of a [`Path`] that crosses subnets.
#[doc(alias = "ibv_global_route")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Route {
    /// The peer's GID.
    pub gid: Gid,
    /// Our own GID's index.
    pub source_index: u8,
    /// How many routers may be crossed.
    pub hop_limit: u8,
    /// The traffic class, on RoCE v2 the IP header's.
    pub traffic_class: u8,
    /// The flow label: 20 bits.
    pub flow_label: u32,
}

impl Path {
    /// From the C structure.
    #[must_use]
    pub fn from_raw(raw: &ibv_ah_attr) -> Self {
        let route = (raw.is_global != 0).then_some(Route {
            gid: Gid::from_raw(raw.grh.dgid),
            source_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
        });
        Self {
            port: raw.port_num,
            lid: Lid(raw.dlid),
            route,
            service_level: raw.sl,
            source_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
        }
    }

    /// The C structure.
    #[must_use]
    pub fn to_raw(self) -> ibv_ah_attr {
        let grh = self.route.map_or_else(ibv_global_route::default, |route| ibv_global_route {
            dgid: route.gid.to_raw(),
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        });
        ibv_ah_attr {
            grh,
            dlid: self.lid.0,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            is_global: self.route.is_some().into(),
            port_num: self.port,
        }
    }
}

/// Attributes for [`QueuePair::modify`](super::QueuePair::modify): each setter also puts its attribute into the mask.
///
/// # Examples
///
/// ```
/// use rdma::{QpAttr, QpAttrMask, QpState, RemoteAccess};
/// let attr = QpAttr::to(QpState::INIT).port(1).pkey_index(0).access(RemoteAccess::READ);
/// assert!(attr.mask().contains(QpAttrMask::STATE | QpAttrMask::PORT));
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy)]
#[must_use]
pub struct QpAttr {
    raw: ibv_qp_attr,
    mask: QpAttrMask,
}

impl QpAttr {
    /// No attributes.
    pub fn new() -> Self {
        Self { raw: ibv_qp_attr::default(), mask: QpAttrMask::empty() }
    }

    /// A change to `state`.
    pub fn to(state: QpState) -> Self {
        Self::new().state(state)
    }

    /// What the connection manager says.
    pub(crate) fn from_raw(raw: ibv_qp_attr, mask: QpAttrMask) -> Self {
        Self { raw, mask }
    }

    fn with(mut self, mask: QpAttrMask, set: impl FnOnce(&mut ibv_qp_attr)) -> Self {
        set(&mut self.raw);
        self.mask |= mask;
        self
    }

    /// The state to go to.
    pub fn state(self, state: QpState) -> Self {
        self.with(QpAttrMask::STATE, |raw| raw.qp_state = ibv_qp_state(state.as_raw()))
    }

    /// The state that the queue pair is assumed to be in.
    pub fn current_state(self, state: QpState) -> Self {
        self.with(QpAttrMask::CUR_STATE, |raw| raw.cur_qp_state = ibv_qp_state(state.as_raw()))
    }

    /// The port.
    pub fn port(self, port: u8) -> Self {
        self.with(QpAttrMask::PORT, |raw| raw.port_num = port)
    }

    /// The partition key's index.
    pub fn pkey_index(self, index: u16) -> Self {
        self.with(QpAttrMask::PKEY_INDEX, |raw| raw.pkey_index = index)
    }

    /// What the peer may do. Local writes are always allowed.
    pub fn access(self, access: RemoteAccess) -> Self {
        let local_write = rdma_sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        self.with(QpAttrMask::ACCESS_FLAGS, |raw| raw.qp_access_flags = access.bits() | local_write)
    }

    /// The queue key: which datagrams are taken.
    pub fn qkey(self, qkey: u32) -> Self {
        self.with(QpAttrMask::QKEY, |raw| raw.qkey = qkey)
    }

    /// The path to the peer.
    pub fn path(self, path: Path) -> Self {
        self.with(QpAttrMask::AV, |raw| raw.ah_attr = path.to_raw())
    }

    /// The path's MTU.
    pub fn path_mtu(self, mtu: Mtu) -> Self {
        self.with(QpAttrMask::PATH_MTU, |raw| raw.path_mtu = ibv_mtu(mtu.as_raw()))
    }

    /// The peer's queue pair number.
    pub fn dest_qpn(self, qpn: u32) -> Self {
        self.with(QpAttrMask::DEST_QPN, |raw| raw.dest_qp_num = qpn)
    }

    /// The number of the first packet that arrives.
    pub fn rq_psn(self, psn: u32) -> Self {
        self.with(QpAttrMask::RQ_PSN, |raw| raw.rq_psn = psn)
    }

    /// The number of the first packet sent.
    pub fn sq_psn(self, psn: u32) -> Self {
        self.with(QpAttrMask::SQ_PSN, |raw| raw.sq_psn = psn)
    }

    /// Reads and atomics in service as the responder.
    pub fn max_dest_rd_atomic(self, count: u8) -> Self {
        self.with(QpAttrMask::MAX_DEST_RD_ATOMIC, |raw| raw.max_dest_rd_atomic = count)
    }

    /// Reads and atomics outstanding as the requester.
    pub fn max_rd_atomic(self, count: u8) -> Self {
        self.with(QpAttrMask::MAX_QP_RD_ATOMIC, |raw| raw.max_rd_atomic = count)
    }

    /// How long the peer shall wait when no receive is posted.
    pub fn min_rnr_timer(self, timer: RnrTimer) -> Self {
        self.with(QpAttrMask::MIN_RNR_TIMER, |raw| raw.min_rnr_timer = timer.code())
    }

    /// The acknowledgement timeout.
    pub fn timeout(self, timeout: AckTimeout) -> Self {
        self.with(QpAttrMask::TIMEOUT, |raw| raw.timeout = timeout.code())
    }

    /// How often to try again without an answer: 0 to 7.
    pub fn retry_count(self, count: u8) -> Self {
        self.with(QpAttrMask::RETRY_CNT, |raw| raw.retry_cnt = count)
    }

    /// How often to try again when the peer has no receive posted: 0 to 6, and 7 for ever.
    pub fn rnr_retry(self, count: u8) -> Self {
        self.with(QpAttrMask::RNR_RETRY, |raw| raw.rnr_retry = count)
    }

    /// The state of path migration.
    pub fn path_mig_state(self, migrated: bool) -> Self {
        let state = if migrated { ibv_mig_state::IBV_MIG_MIGRATED } else { ibv_mig_state::IBV_MIG_REARM };
        self.with(QpAttrMask::PATH_MIG_STATE, |raw| raw.path_mig_state = state)
    }

    /// Whether to raise an event when the send queue is drained.
    pub fn notify_drained(self, notify: bool) -> Self {
        self.with(QpAttrMask::EN_SQD_ASYNC_NOTIFY, |raw| raw.en_sqd_async_notify = notify.into())
    }

    /// Which attributes are set.
    #[must_use]
    pub fn mask(&self) -> QpAttrMask {
        self.mask
    }

    /// The C structure.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_qp_attr {
        &self.raw
    }

    /// The state that this asks for.
    pub(crate) fn target(&self) -> Option<QpState> {
        self.mask.contains(QpAttrMask::STATE).then(|| QpState::from_raw(self.raw.qp_state.0))
    }
}

impl Default for QpAttr {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QpAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpAttr").field("target", &self.target()).field("mask", &self.mask).finish_non_exhaustive()
    }
}
