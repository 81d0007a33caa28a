//! The reliable-connection engine of the software device: no input or output, no threads, no clock.
//!
//! The verbs objects call it to post and poll; a driver moves frames between the engines of two processes. Everything
//! runs under the caller's one lock. After each call that may have caused work, the driver does, in any order:
//! [`poll_active_link`](Engine::poll_active_link) and [`poll_transmit`](Engine::poll_transmit),
//! [`poll_event`](Engine::poll_event), [`poll_connect`](Engine::poll_connect), [`poll_grant`](Engine::poll_grant) and
//! [`poll_timeout`](Engine::poll_timeout).

mod frame;
pub mod limits;
mod memory;
mod types;

use rdma_sys::{ibv_sge, ibv_wc};

pub use frame::{HEADER_WORDS, Header};
pub use memory::{Area, Gather, Source, Target};
pub use types::{
    Backing, CqId, Element, Errno, Event, Grant, LinkId, ModifyQp, MrKeys, PdId, QpId, QpInit, QpState, QpStatus,
    Registration, SendData, SendRequest, Slot, Time, Transmit,
};

/// Bytes of the memory in which an engine publishes its regions and queue pairs to its peers.
pub const DIRECTORY_LEN: usize = 1 << 20;

/// What an engine is made with.
#[derive(Debug)]
pub struct EngineConfig {
    /// The process's slot. More may be added with [`Engine::add_slot`].
    pub slot: Slot,
    /// Seed of the keys. Take it from the kernel's random source.
    pub seed: u64,
    /// `DIRECTORY_LEN` zeroed bytes that peers may map; `None`: peers do nothing by themselves.
    pub directory: Option<Area>,
}

/// Where frames go: the producing end of a link's ring.
pub trait Outbound {
    /// The largest payload of one frame. At least 256.
    fn max_payload(&self) -> usize;
    /// Takes a frame with its payload, whole; false if there is no room for it now.
    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool;
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
}

#[allow(
    unused_variables,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "skeleton of signatures, about to be filled"
)]
impl Engine {
    /// An engine with nothing in it.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self { config }
    }

    /// Adds a slot, when `create_qp` said `ENOMEM` because all queue pair numbers are taken.
    pub fn add_slot(&mut self, slot: Slot) {
        todo!("skeleton")
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, Errno> {
        todo!("skeleton")
    }

    /// Ends a protection domain; `EBUSY` while something is in it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// Until [`deregister`](Self::deregister) returns, the memory stays mapped: readable, and writable if `access` has
    /// LOCAL_WRITE, REMOTE_WRITE or REMOTE_ATOMIC; nobody in this process accesses it but by atomic accesses, or while no
    /// work request or peer may do so.
    pub unsafe fn register(&mut self, pd: PdId, what: &Registration) -> Result<MrKeys, Errno> {
        todo!("skeleton")
    }

    /// Ends a registration; the engine does not touch the memory again.
    pub fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// A new completion queue of exactly `depth` entries. `token` comes back in its events.
    pub fn create_cq(&mut self, depth: u32, token: u64) -> Result<CqId, Errno> {
        todo!("skeleton")
    }

    /// Ends a completion queue; `EBUSY` while a queue pair uses it. Its unpolled events are dropped.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// Changes a completion queue's depth; `EINVAL` if more entries than that wait in it.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// Takes completions: how many. `EIO` if the queue overran.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        todo!("skeleton")
    }

    /// Asks for one event at the next completion (or the next solicited or failed one).
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// A new queue pair, in RESET, and its number. `ENOMEM` if no number is free.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(QpId, u32), Errno> {
        todo!("skeleton")
    }

    /// Ends a queue pair; its completions leave the completion queues, its unpolled events are dropped.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// Applies a change that the caller has checked against the mask table. Drain the links first.
    pub fn modify_qp(&mut self, qp: QpId, change: &ModifyQp) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// What only the engine knows.
    pub fn query_qp(&self, qp: QpId) -> Result<QpStatus, Errno> {
        todo!("skeleton")
    }

    /// Posts a send request. `ENOMEM`: the queue is full. `EINVAL`: wrong state, or a request that the queue pair cannot
    /// hold.
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        todo!("skeleton")
    }

    /// The next event for the process.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!("skeleton")
    }

    /// A link to the process with `slot` is up (call it once for each slot of that process). Our own slot: the loopback,
    /// which gives every frame back to [`handle_frame`](Self::handle_frame) under the same id. `directory`: the peer's,
    /// mapped.
    pub fn handle_link_up(&mut self, slot: Slot, link: LinkId, directory: Option<Area>) {
        todo!("skeleton")
    }

    /// The peer at the other end has died, or is no longer to be trusted.
    pub fn handle_link_down(&mut self, link: LinkId) {
        todo!("skeleton")
    }

    /// No process has that slot, or it refuses us.
    pub fn handle_unreachable(&mut self, slot: Slot) {
        todo!("skeleton")
    }

    /// A slot to which a link is wanted: answer with `handle_link_up` or `handle_unreachable`. Our own: the loopback.
    pub fn poll_connect(&mut self) -> Option<Slot> {
        todo!("skeleton")
    }

    /// A frame has come in. `header` is a private copy; `payload` may lie in the ring.
    pub fn handle_frame(&mut self, link: LinkId, header: &Header, payload: Source<'_>) {
        todo!("skeleton")
    }

    /// A link that has got something to send since it was last returned here (acknowledgements included: so ask after the
    /// drain of a link, not after each frame). A link whose transmission ended `Blocked` or `More` is the driver's to
    /// remember.
    pub fn poll_active_link(&mut self) -> Option<LinkId> {
        todo!("skeleton")
    }

    /// Sends what there is for a link; copies at most about `limits::COPY_BUDGET` bytes.
    pub fn poll_transmit(&mut self, link: LinkId, out: &mut impl Outbound) -> Transmit {
        todo!("skeleton")
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). A timer that was just started reads as `Time(0)`, that is
    /// "now": so only who has timers needs a clock.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!("skeleton")
    }

    /// Starts new timers and fires those that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!("skeleton")
    }

    /// A region for which a peer asked.
    pub fn poll_grant(&mut self) -> Option<Grant> {
        todo!("skeleton")
    }

    /// The peer of `link` granted us its region: the file is mapped at `area`, the region's bytes exactly.
    pub fn handle_mapping(&mut self, link: LinkId, rkey: u32, area: Area) {
        todo!("skeleton")
    }
}
