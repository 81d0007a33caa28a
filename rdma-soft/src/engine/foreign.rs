//! Foreign memory: memory that the engine does not access itself, such as a GPU's or that of an
//! on-demand region. A request on such memory becomes copies, which the driver has executed.
//!
//! A copy moves bytes between foreign memory and staging bytes of the engine. The queue pair that
//! began the copy waits for [`Engine::handle_copied`](super::Engine::handle_copied); other queue
//! pairs go on. While a copy of a region or a queue pair is running, neither ends.

use std::fmt;
use std::sync::Arc;

use super::types::QpId;

/// A copy, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyId(u64);

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From foreign memory to the staging bytes.
    Fetch,
    /// From the staging bytes to foreign memory.
    Store,
}

/// A copy for the driver to execute. It answers with
/// [`handle_copied`](super::Engine::handle_copied).
#[derive(Debug)]
pub(crate) struct CopyJob {
    pub(crate) id: CopyId,
    pub(crate) direction: Direction,
    /// The address in foreign memory.
    pub(crate) address: u64,
    /// The staging bytes, as many as the copy moves.
    pub(crate) bytes: Vec<u8>,
    /// The region's copier.
    pub(crate) copier: Arc<dyn CopyQueue>,
}

/// The outcome of a copy.
#[derive(Debug)]
pub(crate) enum CopyEnd {
    /// The copy is done; these are its staging bytes.
    Done(Vec<u8>),
    /// The copy has failed and no longer accesses the memory.
    Failed,
    /// Like `Failed`; the reason is that the memory is not mapped or not accessible.
    Fault,
    /// The copy may go on for ever. Its region never ends.
    Unknown,
}

/// A queue of copies, which the driver of the engine gives each foreign region.
pub(crate) trait CopyQueue: fmt::Debug + Send + Sync {
    /// Appends a copy. The engine does not call this; its driver does.
    fn push(&self, job: CopyJob);
}

/// The arguments of a registration of foreign memory.
#[derive(Clone, Debug)]
pub(crate) struct ForeignRegistration {
    /// The first byte's address, for the copier.
    pub(crate) address: u64,
    /// The length in bytes.
    pub(crate) len: usize,
    /// The first byte's address, for requests.
    pub(crate) iova: u64,
    /// The rights, `IBV_ACCESS_*`.
    pub(crate) access: u32,
    /// The copier of the memory.
    pub(crate) copier: Arc<dyn CopyQueue>,
}

/// A range of foreign memory, which a request may use now.
#[derive(Clone, Debug)]
pub(super) struct ForeignRange {
    /// The key of the region.
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) copier: Arc<dyn CopyQueue>,
}

impl ForeignRange {
    /// Returns `len` bytes of the range from `offset` on, if they lie in the range.
    pub(super) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let fits = offset <= self.len && len <= self.len - offset;
        fits.then(|| Self { address: self.address + offset as u64, len, ..self.clone() })
    }
}

/// The activity of a queue pair that waits for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// The requester fetches data of a request.
    Request,
    /// The responder fetches data of an answer.
    Answer,
    /// The payload of a frame is stored.
    Inbox,
}

/// A copy that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    id: CopyId,
    pub(super) qp: QpId,
    pub(super) key: u32,
    pub(super) waiter: Waiter,
}

/// The copies that have not ended.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The number of copies ever begun.
    count: u64,
    running: Vec<Running>,
}

impl Copies {
    /// Records a new copy of a region for a queue pair.
    pub(super) fn begin(&mut self, key: u32, qp: QpId, waiter: Waiter) -> CopyId {
        self.count += 1;
        let id = CopyId(self.count);
        self.running.push(Running { id, qp, key, waiter });
        id
    }

    /// Removes a copy that has ended.
    pub(super) fn end(&mut self, id: CopyId) -> Option<Running> {
        let at = self.running.iter().position(|running| running.id == id)?;
        Some(self.running.swap_remove(at))
    }

    /// Whether a copy of a queue pair is running.
    pub(super) fn uses_qp(&self, qp: QpId) -> bool {
        self.running.iter().any(|running| running.qp == qp)
    }

    /// Whether a copy of a region is running.
    pub(super) fn uses_region(&self, key: u32) -> bool {
        self.running.iter().any(|running| running.key == key)
    }
}
