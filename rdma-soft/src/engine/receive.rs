//! The receive requests of a queue pair: those of its own queue, or of a shared one.

use rdma_sys::ibv_sge;

use super::queue::{RecvQueue, RecvWqe, boxed};
use super::tables::Tables;
use super::types::{Errno, PdId, QpInit, SrqId};

/// The source of a queue pair's receive requests.
#[derive(Debug)]
pub(super) enum Receives {
    /// The queue pair's own queue.
    Own(RecvQueue),
    /// A shared queue.
    Shared(Shared),
}

/// A queue pair's use of a shared receive queue.
///
/// A message takes its request when it begins, since the next request may go to another queue pair
/// before the message ends.
#[derive(Debug)]
pub(super) struct Shared {
    srq: SrqId,
    pd: PdId,
    /// The request of the message in progress, whose scatter list is in `list`.
    taken: Option<RecvWqe>,
    list: Box<[ibv_sge]>,
}

/// The receive request for the message in progress.
pub(super) struct Receive<'a> {
    pub(super) wqe: RecvWqe,
    pub(super) list: &'a [ibv_sge],
    /// The domain of the memory in the list.
    pub(super) pd: PdId,
}

impl Receives {
    pub(super) fn new(init: &QpInit, tables: &Tables) -> Result<Self, Errno> {
        let Some(srq) = init.srq else {
            return RecvQueue::new(init.max_recv_wr, init.max_recv_sge).map(Self::Own);
        };
        let (pd, max_sge) = tables.srqs.describe(srq)?;
        Ok(Self::Shared(Shared { srq, pd, taken: None, list: boxed(max_sge, ibv_sge::default())? }))
    }

    /// Returns the shared queue.
    pub(super) const fn srq(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => Some(shared.srq),
        }
    }

    /// Returns the request for the message in progress, or for the next one. `pd` is the queue
    /// pair's domain.
    #[inline]
    pub(super) fn front(&mut self, pd: PdId, tables: &mut Tables) -> Option<Receive<'_>> {
        if let Self::Shared(shared) = self {
            if shared.taken.is_none() {
                shared.taken = tables.srqs.take(shared.srq, &mut shared.list, &mut tables.events);
            }
        }
        self.current(pd)
    }

    /// Returns the length of the request that [`front`](Self::front) would return, and takes none
    /// from a shared queue.
    pub(super) fn front_len(&self, tables: &Tables) -> Option<u32> {
        match self {
            Self::Own(queue) => queue.front().map(|(wqe, _)| wqe.total),
            Self::Shared(Shared { taken: Some(wqe), .. }) => Some(wqe.total),
            Self::Shared(shared) => tables.srqs.front_len(shared.srq),
        }
    }

    /// Returns the request for the message in progress; of the queue pair's own queue, the oldest
    /// request.
    #[inline]
    pub(super) fn current(&self, pd: PdId) -> Option<Receive<'_>> {
        match self {
            Self::Own(queue) => queue.front().map(|(wqe, list)| Receive { wqe, list, pd }),
            Self::Shared(shared) => {
                let wqe = shared.taken?;
                Some(Receive { wqe, list: &shared.list[..wqe.sges()], pd: shared.pd })
            }
        }
    }

    /// Removes the request that [`front`](Self::front) returns; of a shared queue, only a request
    /// that this queue pair has taken.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.pop(),
            Self::Shared(shared) => shared.taken.take(),
        }
    }

    /// The queue pair's own queue, to which requests can be posted.
    #[inline]
    pub(super) fn own(&mut self) -> Result<&mut RecvQueue, Errno> {
        match self {
            Self::Own(queue) => Ok(queue),
            Self::Shared(_) => Err(Errno::INVAL),
        }
    }

    /// Removes all requests of the queue pair. A request that it has taken from a shared queue is
    /// lost, as the specification has it for a queue pair that is reset or destroyed.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared(shared) => shared.taken = None,
        }
    }
}
