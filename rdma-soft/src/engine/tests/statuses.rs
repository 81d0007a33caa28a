//! The statuses of completions, as the tests compare them.

use rdma_sys::ibv_wc_status as status;

pub(super) const OK: u32 = status::IBV_WC_SUCCESS.0;
pub(super) const FLUSH: u32 = status::IBV_WC_WR_FLUSH_ERR.0;
pub(super) const LOC_PROT: u32 = status::IBV_WC_LOC_PROT_ERR.0;
pub(super) const LOC_LEN: u32 = status::IBV_WC_LOC_LEN_ERR.0;
pub(super) const LOC_QP_OP: u32 = status::IBV_WC_LOC_QP_OP_ERR.0;
pub(super) const REM_INV: u32 = status::IBV_WC_REM_INV_REQ_ERR.0;
pub(super) const REM_ACCESS: u32 = status::IBV_WC_REM_ACCESS_ERR.0;
pub(super) const REM_OP: u32 = status::IBV_WC_REM_OP_ERR.0;
pub(super) const BAD_RESP: u32 = status::IBV_WC_BAD_RESP_ERR.0;
pub(super) const RETRY: u32 = status::IBV_WC_RETRY_EXC_ERR.0;
pub(super) const RNR_RETRY: u32 = status::IBV_WC_RNR_RETRY_EXC_ERR.0;
