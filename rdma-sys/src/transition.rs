//! Which attributes `ibv_modify_qp` requires and allows, by type of queue pair and change of state.
//!
//! The table is the InfiniBand specification's (volume 1, 11.2.5.2, "modify queue pair"), as Linux
//! reads it in `ib_modify_qp_is_ok`. Where the two differ Linux decides, because it refuses the
//! call: a queue pair in RESET cannot go to ERR.

use crate::bindings::{ibv_qp_attr_mask as M, ibv_qp_state as S, ibv_qp_type as T};
use std::fmt;

bitflags::bitflags! {
    /// A set of queue pair attributes: `ibv_qp_attr_mask` with set operations and names.
    #[doc(alias = "ibv_qp_attr_mask")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QpAttrMask: u32 {
        /// The state to go to.
        const STATE = M::IBV_QP_STATE.0;
        /// The state that the caller expects the queue pair to be in.
        const CUR_STATE = M::IBV_QP_CUR_STATE.0;
        /// Whether to raise an event when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = M::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
        /// The operations that the peer may do.
        const ACCESS_FLAGS = M::IBV_QP_ACCESS_FLAGS.0;
        /// The index of the partition key.
        const PKEY_INDEX = M::IBV_QP_PKEY_INDEX.0;
        /// The port.
        const PORT = M::IBV_QP_PORT.0;
        /// The queue key of datagrams.
        const QKEY = M::IBV_QP_QKEY.0;
        /// The path to the peer.
        const AV = M::IBV_QP_AV.0;
        /// The MTU of the path.
        const PATH_MTU = M::IBV_QP_PATH_MTU.0;
        /// The acknowledgement timeout.
        const TIMEOUT = M::IBV_QP_TIMEOUT.0;
        /// How often to repeat a request that is not acknowledged.
        const RETRY_CNT = M::IBV_QP_RETRY_CNT.0;
        /// How often to repeat a request for which the peer had no receive posted.
        const RNR_RETRY = M::IBV_QP_RNR_RETRY.0;
        /// The sequence number of the first packet that arrives.
        const RQ_PSN = M::IBV_QP_RQ_PSN.0;
        /// Reads and atomics outstanding as the requester.
        const MAX_QP_RD_ATOMIC = M::IBV_QP_MAX_QP_RD_ATOMIC.0;
        /// The alternate path.
        const ALT_PATH = M::IBV_QP_ALT_PATH.0;
        /// How long the peer waits before it repeats a request for which no receive was posted.
        const MIN_RNR_TIMER = M::IBV_QP_MIN_RNR_TIMER.0;
        /// The sequence number of the first packet sent.
        const SQ_PSN = M::IBV_QP_SQ_PSN.0;
        /// Reads and atomics in service as the responder.
        const MAX_DEST_RD_ATOMIC = M::IBV_QP_MAX_DEST_RD_ATOMIC.0;
        /// The state of path migration.
        const PATH_MIG_STATE = M::IBV_QP_PATH_MIG_STATE.0;
        /// The sizes of the queues.
        const CAP = M::IBV_QP_CAP.0;
        /// The number of the peer's queue pair.
        const DEST_QPN = M::IBV_QP_DEST_QPN.0;
        /// The limit of the send rate.
        const RATE_LIMIT = M::IBV_QP_RATE_LIMIT.0;
    }
}

/// The names, separated by ` | `; bits without a name as a number.
impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// The attributes of one change of state.
///
/// # Examples
///
/// ```
/// use rdma_sys::{QpAttrMask, QpTransition, ibv_qp_state, ibv_qp_type};
///
/// let (init, rtr) = (ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR);
/// let transition = QpTransition::of(ibv_qp_type::IBV_QPT_UC, init, rtr).unwrap();
/// assert_eq!(transition.required.to_string(), "AV | PATH_MTU | RQ_PSN | DEST_QPN");
/// assert!(transition.optional.contains(QpAttrMask::PKEY_INDEX));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpTransition {
    /// The attributes that the change requires, besides `STATE`.
    pub required: QpAttrMask,
    /// The attributes that the change allows, besides `STATE` and the required ones.
    ///
    /// The specification lacks `RATE_LIMIT`: of the types here, Linux allowed it for raw packets
    /// only until version 6.19. Later versions leave it to the driver.
    pub optional: QpAttrMask,
}

impl QpTransition {
    /// The attributes of the change from one state to another, or `None` if there is no such
    /// change.
    ///
    /// A call of `ibv_modify_qp` without `IBV_QP_STATE` is a change from the present state to
    /// itself.
    #[must_use]
    pub fn of(qp_type: T, from: S, to: S) -> Option<Self> {
        type A = QpAttrMask;
        const NONE: A = A::empty();
        const MIGRATION: A = A::ALT_PATH.union(A::PATH_MIG_STATE);
        let has = Parts::of(qp_type)?;
        let only = |part: Parts, attributes: A| if has.intersects(part) { attributes } else { NONE };
        let bound = only(Parts::TRANSPORT, A::PKEY_INDEX | A::PORT)
            | only(Parts::CONNECTED, A::ACCESS_FLAGS)
            | only(Parts::DATAGRAM, A::QKEY);
        let running = only(Parts::TRANSPORT, A::CUR_STATE)
            | only(Parts::CONNECTED, A::ACCESS_FLAGS | MIGRATION)
            | only(Parts::RESPONDER, A::MIN_RNR_TIMER)
            | only(Parts::DATAGRAM, A::QKEY);
        let rate = only(Parts::RAW_PACKET, A::RATE_LIMIT);
        let (required, optional) = match (from, to) {
            (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => return None,
            (S(0..=6), S::IBV_QPS_RESET | S::IBV_QPS_ERR) => (NONE, NONE),
            (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => (bound | only(Parts::RAW_PACKET, A::PORT), NONE),
            (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => (NONE, bound),
            (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => (
                only(Parts::CONNECTED, A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN)
                    | only(Parts::RESPONDER, A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER),
                only(Parts::TRANSPORT, A::PKEY_INDEX)
                    | only(Parts::CONNECTED, A::ALT_PATH | A::ACCESS_FLAGS)
                    | only(Parts::DATAGRAM, A::QKEY),
            ),
            (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => (
                only(Parts::TRANSPORT, A::SQ_PSN)
                    | only(Parts::RELIABLE, A::TIMEOUT)
                    | only(Parts::REQUESTER, A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC),
                running | rate,
            ),
            (S::IBV_QPS_RTS, S::IBV_QPS_RTS) => (NONE, running | rate),
            (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => (NONE, only(Parts::TRANSPORT, A::EN_SQD_ASYNC_NOTIFY)),
            (S::IBV_QPS_SQD, S::IBV_QPS_RTS) => (NONE, running),
            (S::IBV_QPS_SQD, S::IBV_QPS_SQD) => (
                NONE,
                only(Parts::TRANSPORT, A::PKEY_INDEX)
                    | only(Parts::CONNECTED, A::AV | A::ACCESS_FLAGS | MIGRATION)
                    | only(Parts::RELIABLE, A::PORT | A::TIMEOUT)
                    | only(Parts::REQUESTER, A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC)
                    | only(Parts::RESPONDER, A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER)
                    | only(Parts::DATAGRAM, A::QKEY),
            ),
            // A failed send queue of a reliable transport takes the queue pair to ERR.
            (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if !has.intersects(Parts::RELIABLE) => (NONE, running - MIGRATION),
            _ => return None,
        };
        Some(Self { required, optional })
    }
}

bitflags::bitflags! {
    /// The parts of a queue pair that attributes configure.
    #[derive(Clone, Copy)]
    struct Parts: u32 {
        const RAW_PACKET = 1;
        const DATAGRAM = 2;
        const CONNECTED = 4;
        /// The half of a reliable connection that sends requests and repeats them.
        const REQUESTER = 8;
        /// The half of a reliable connection that answers requests.
        const RESPONDER = 16;
        const RELIABLE = Self::REQUESTER.bits() | Self::RESPONDER.bits();
        /// The transports of InfiniBand, unlike raw Ethernet.
        const TRANSPORT = Self::DATAGRAM.bits() | Self::CONNECTED.bits();
    }
}

impl Parts {
    /// The parts of a queue pair type, or `None` if the table lacks the type.
    fn of(qp_type: T) -> Option<Self> {
        Some(match qp_type {
            T::IBV_QPT_RC => Self::CONNECTED | Self::RELIABLE,
            T::IBV_QPT_UC => Self::CONNECTED,
            T::IBV_QPT_UD => Self::DATAGRAM,
            T::IBV_QPT_RAW_PACKET => Self::RAW_PACKET,
            T::IBV_QPT_XRC_SEND => Self::CONNECTED | Self::REQUESTER,
            T::IBV_QPT_XRC_RECV => Self::CONNECTED | Self::RESPONDER,
            _ => return None,
        })
    }
}
