//! Opcodes and statuses of completions, and the ids of completion queues.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::ibv_wc_status;

use super::c_enum::c_enum;

/// The operation of a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Opcode {
    /// A send, with or without immediate data.
    Send,
    /// An RDMA write, with or without immediate data.
    Write,
    /// An RDMA read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive that took a send's message.
    Recv,
    /// A receive that a write with immediate data consumed: the payload is at the address that the
    /// peer wrote to, not in the receive's buffer.
    RecvWriteImm,
}

impl Opcode {
    pub(crate) const fn from_u8(number: u8) -> Self {
        match number {
            0 => Self::Send,
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::CompareSwap,
            4 => Self::FetchAdd,
            5 => Self::Recv,
            _ => Self::RecvWriteImm,
        }
    }

    /// Whether the response to a request is written to its local memory.
    pub(crate) const fn writes_local(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }
}

c_enum! {
    /// The result of a work request.
    #[doc(alias = "ibv_wc_status")]
    WcStatus(u32) {
        /// The request succeeded.
        SUCCESS = ibv_wc_status::IBV_WC_SUCCESS.0, "success";
        /// A message longer than its receive buffer, or a wrong length.
        LOC_LEN_ERR = ibv_wc_status::IBV_WC_LOC_LEN_ERR.0, "local length error: the message does not fit the receive buffer";
        /// The queue pair could not execute the operation.
        LOC_QP_OP_ERR = ibv_wc_status::IBV_WC_LOC_QP_OP_ERR.0, "local queue pair operation error";
        /// A local key does not allow the access.
        LOC_PROT_ERR = ibv_wc_status::IBV_WC_LOC_PROT_ERR.0, "local protection error: a local key does not cover the buffer";
        /// The queue pair entered the error state before the request was executed.
        WR_FLUSH_ERR = ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0, "flushed: the queue pair is in the error state";
        /// A memory window could not be bound.
        MW_BIND_ERR = ibv_wc_status::IBV_WC_MW_BIND_ERR.0, "memory window bind error";
        /// The peer's response is malformed.
        BAD_RESP_ERR = ibv_wc_status::IBV_WC_BAD_RESP_ERR.0, "bad response from the peer";
        /// A local access error on the receiving side of a write with immediate data.
        LOC_ACCESS_ERR = ibv_wc_status::IBV_WC_LOC_ACCESS_ERR.0, "local access error";
        /// The peer refused the request: often its receive buffer is too small.
        REM_INV_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR.0, "the peer refused the request: receive buffer too small, or operation not allowed";
        /// The peer's key does not allow the access.
        REM_ACCESS_ERR = ibv_wc_status::IBV_WC_REM_ACCESS_ERR.0, "remote access error: the remote key does not allow it";
        /// The peer failed to execute the operation.
        REM_OP_ERR = ibv_wc_status::IBV_WC_REM_OP_ERR.0, "the peer could not do the operation";
        /// The peer did not answer: it is dead, unreachable or not connected.
        RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0, "no answer from the peer: it is dead, unreachable or not connected";
        /// The peer had no receive posted.
        RNR_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR.0, "the peer posted no receive";
        /// The peer aborted the operation.
        REM_ABORT_ERR = ibv_wc_status::IBV_WC_REM_ABORT_ERR.0, "the peer aborted the operation";
        /// The device failed.
        FATAL_ERR = ibv_wc_status::IBV_WC_FATAL_ERR.0, "fatal device error";
        /// No response arrived in time.
        RESP_TIMEOUT_ERR = ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR.0, "response timeout";
        /// Another error.
        GENERAL_ERR = ibv_wc_status::IBV_WC_GENERAL_ERR.0, "general error";
    }
}

/// The error of a failed work request, as its completion reports it.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WcError {
    /// The kind of failure.
    pub status: WcStatus,
    /// The provider's own code; see the vendor's documentation.
    pub vendor_err: u32,
}

impl WcError {
    /// An error of a kind, with the provider's own code.
    #[must_use]
    pub const fn new(status: WcStatus, vendor_err: u32) -> Self {
        Self { status, vendor_err }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if self.vendor_err != 0 { write!(f, " (vendor code {:#x})", self.vendor_err) } else { Ok(()) }
    }
}

debug_is_display!(WcError);

impl std::error::Error for WcError {}

/// The identifier of a completion queue in events, unique among the queues that this crate has
/// made.
///
/// That of a queue of [`from_raw`](crate::CompletionQueue::from_raw) is the address of its user
/// context, which other code chose: it may be that of another queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(crate) u64);

/// The identifier of a shared receive queue in events, unique among the queues that this crate has
/// made.
///
/// That of a queue of [`from_raw`](crate::SharedReceiveQueue::from_raw) is the address of its user
/// context, which other code chose: it may be that of another queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub(crate) u64);

/// An identifier that no other queue of this crate has had or will have.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CqId {
    pub(crate) fn fresh() -> Self {
        Self(fresh())
    }
}

impl SrqId {
    pub(crate) fn fresh() -> Self {
        Self(fresh())
    }
}
