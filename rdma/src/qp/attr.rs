//! Attributes of queue pairs.

use std::fmt;

use rdma_sys::{ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_state};

use crate::types::{AckTimeout, Mtu, Path, QpAttrMask, QpState, RemoteAccess, RnrTimer};

/// Attributes for [`QueuePair::modify`](super::QueuePair::modify): each setter also puts its
/// attribute into the mask.
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

const LOCAL_WRITE: u32 = rdma_sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;

/// Makes a setter from each line: `name(argument: type), mask, field = value;`.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $type:ty), $mask:ident, $field:ident = $value:expr;)*) => { $(
        $(#[$doc])*
        pub fn $name(mut self, $argument: $type) -> Self {
            self.raw.$field = $value;
            self.mask |= QpAttrMask::$mask;
            self
        }
    )* };
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

    /// The attributes that the connection manager returned.
    pub(crate) fn from_raw(raw: ibv_qp_attr, mask: QpAttrMask) -> Self {
        Self { raw, mask }
    }

    attributes! {
        /// The state to move to.
        state(state: QpState), STATE, qp_state = ibv_qp_state(state.as_raw());

        /// The state that the queue pair is assumed to be in.
        current_state(state: QpState), CUR_STATE, cur_qp_state = ibv_qp_state(state.as_raw());

        /// The port.
        port(port: u8), PORT, port_num = port;

        /// The partition key's index.
        pkey_index(index: u16), PKEY_INDEX, pkey_index = index;

        /// The operations that the peer may do. Local writes are always allowed.
        access(access: RemoteAccess), ACCESS_FLAGS, qp_access_flags = access.bits() | LOCAL_WRITE;

        /// The queue key (Q_Key): datagrams sent with any other are dropped.
        qkey(qkey: u32), QKEY, qkey = qkey;

        /// The path to the peer.
        path(path: Path), AV, ah_attr = path.to_raw();

        /// The path's MTU.
        path_mtu(mtu: Mtu), PATH_MTU, path_mtu = ibv_mtu(mtu.as_raw());

        /// The peer's queue pair number.
        dest_qpn(qpn: u32), DEST_QPN, dest_qp_num = qpn;

        /// The PSN of the first packet that arrives.
        rq_psn(psn: u32), RQ_PSN, rq_psn = psn;

        /// The PSN of the first packet sent.
        sq_psn(psn: u32), SQ_PSN, sq_psn = psn;

        /// The number of reads and atomics in service at a time, as the responder.
        max_dest_rd_atomic(count: u8), MAX_DEST_RD_ATOMIC, max_dest_rd_atomic = count;

        /// The number of reads and atomics outstanding at a time, as the requester.
        max_rd_atomic(count: u8), MAX_QP_RD_ATOMIC, max_rd_atomic = count;

        /// The time that the peer waits before it tries again when no receive is posted.
        min_rnr_timer(timer: RnrTimer), MIN_RNR_TIMER, min_rnr_timer = timer.code();

        /// The acknowledgement timeout.
        timeout(timeout: AckTimeout), TIMEOUT, timeout = timeout.code();

        /// The number of retries without an answer: 0 to 7.
        retry_count(count: u8), RETRY_CNT, retry_cnt = count;

        /// The number of retries while the peer has no receive posted: 0 to 6; 7 retries for ever.
        rnr_retry(count: u8), RNR_RETRY, rnr_retry = count;

        /// The path migration state: migrated if true, else to be armed again.
        path_mig_state(migrated: bool), PATH_MIG_STATE, path_mig_state =
            if migrated { ibv_mig_state::IBV_MIG_MIGRATED } else { ibv_mig_state::IBV_MIG_REARM };

        /// Whether to raise an event when the send queue is drained.
        notify_drained(notify: bool), EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify = notify.into();
    }

    /// The attributes that are set.
    #[must_use]
    pub fn mask(&self) -> QpAttrMask {
        self.mask
    }

    /// The C structure.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_qp_attr {
        &self.raw
    }

    /// The state that these attributes move to, if they set one.
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
