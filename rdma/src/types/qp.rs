//! States and attribute sets of queue pairs.

pub use rdma_sys::QpAttrMask;
use rdma_sys::{ibv_ece, ibv_qp_state};

use super::c_enum::c_enum;

c_enum! {
    /// The state of a queue pair.
    #[doc(alias = "ibv_qp_state")]
    QpState(u32) {
        /// New, or reset: no request can be posted.
        RESET = ibv_qp_state::IBV_QPS_RESET.0, "RESET";
        /// Bound to a port: receives can be posted.
        INIT = ibv_qp_state::IBV_QPS_INIT.0, "INIT";
        /// Ready to receive: messages are received.
        RTR = ibv_qp_state::IBV_QPS_RTR.0, "RTR";
        /// Ready to send.
        RTS = ibv_qp_state::IBV_QPS_RTS.0, "RTS";
        /// The send queue is draining or drained.
        SQD = ibv_qp_state::IBV_QPS_SQD.0, "SQD";
        /// The send queue failed (not on reliable transports).
        SQE = ibv_qp_state::IBV_QPS_SQE.0, "SQE";
        /// Failed: all requests are flushed.
        ERR = ibv_qp_state::IBV_QPS_ERR.0, "ERR";
        /// An unknown state.
        UNKNOWN = ibv_qp_state::IBV_QPS_UNKNOWN.0, "UNKNOWN";
    }
}

/// Options of enhanced connection establishment (ECE), on which both providers agree, in their
/// vendor's own encoding.
#[doc(alias = "ibv_ece")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Ece {
    /// The vendor; 0 if the provider has no ECE options.
    pub vendor_id: u32,
    /// The vendor's options.
    pub options: u32,
}

impl Ece {
    /// Options in the encoding of a vendor.
    #[must_use]
    pub const fn new(vendor_id: u32, options: u32) -> Self {
        Self { vendor_id, options }
    }

    pub(crate) fn to_raw(self) -> ibv_ece {
        ibv_ece { vendor_id: self.vendor_id, options: self.options, comp_mask: 0 }
    }

    pub(crate) fn from_raw(raw: ibv_ece) -> Self {
        Self { vendor_id: raw.vendor_id, options: raw.options }
    }
}
