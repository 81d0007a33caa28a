//! Where a completion goes that is no poller's.

use rdma_sys::ibv_wc_status;

/// Takes the completions of requests that name it, from whatever poller fetches them. It lies
/// outside of the ring, so that a slow receiver keeps no slot.
pub(crate) trait Sink: Send + Sync {
    /// A request has ended: the device has let go of its memory.
    fn finished(&self, status: ibv_wc_status, vendor_error: u32);

    /// A request was not taken by the device, and is the caller's again.
    fn abandoned(&self);
}
