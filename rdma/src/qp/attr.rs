//! Attributes of queue pairs, and which of them each change of state wants.

use std::fmt;

use rdma_sys::{ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_state};

use crate::types::{AckTimeout, Mtu, Path, QpAttrMask, QpState, RemoteAccess, RnrTimer};

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
