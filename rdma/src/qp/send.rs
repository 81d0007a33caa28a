//! Under construction.
#![allow(dead_code, reason = "under construction")]
use super::ring::Ring;
use crate::cq::CqInner;
use std::sync::Arc;
pub(crate) struct SendLimits {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) signal_all: bool,
    pub(crate) is_iwarp: bool,
}
pub(crate) struct SendQueue(Arc<CqInner>);
impl SendQueue {
    pub(crate) fn new(_qp: *mut rdma_sys::ibv_qp, cq: Arc<CqInner>, _ring: Ring, _limits: SendLimits) -> Self {
        Self(cq)
    }
    pub(crate) fn reclaim(&mut self) {}
    pub(crate) fn release_all(&mut self) {}
    pub(crate) fn leak(&mut self) {}
}
