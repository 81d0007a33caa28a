//! The destination of completions that go to no poller.

use rdma_sys::ibv_wc_status;

/// Receives the completions of the requests that name it, from any poller that fetches them. A sink
/// is stored outside the ring, so that a slow receiver occupies no slot.
pub(crate) trait Sink: Send + Sync {
    /// A request has ended: the device no longer accesses its memory.
    fn finished(&self, status: ibv_wc_status, vendor_error: u32);

    /// The device did not accept a request: the caller owns its memory again.
    fn abandoned(&self);
}
