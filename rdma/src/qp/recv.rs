//! Under construction.
#![allow(dead_code, reason = "under construction")]
use super::ring::Ring;
use crate::cq::CqInner;
use std::sync::Arc;
pub(crate) struct RecvQueue(Arc<CqInner>);
impl RecvQueue {
    pub(crate) fn new(_qp: *mut rdma_sys::ibv_qp, cq: Arc<CqInner>, _ring: Ring, _max_sge: u32) -> Self {
        Self(cq)
    }
    pub(crate) fn reclaim(&mut self) {}
    pub(crate) fn release_all(&mut self) {}
    pub(crate) fn leak(&mut self) {}
}
