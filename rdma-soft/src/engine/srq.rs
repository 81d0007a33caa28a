//! Shared receive queues.

use rdma_sys::{ibv_event_type, ibv_sge};

use super::events::Events;
use super::limits::{MAX_SGE, MAX_SRQ, MAX_SRQ_WR};
use super::queue::{RecvQueue, RecvWqe};
use super::types::{Element, Errno, Event, PdId, SrqId, SrqInit, SrqStatus};

/// A shared receive queue.
#[derive(Debug)]
struct Srq {
    ring: RecvQueue,
    pd: PdId,
    token: u64,
    /// If fewer requests than this are left, the queue raises its limit event. 0: disarmed.
    limit: u32,
    /// Queue pairs that use the queue.
    users: u32,
}

impl Srq {
    /// Raises the limit event and disarms it, if fewer requests than the limit are left.
    #[inline]
    fn check_limit(&mut self, id: SrqId, events: &mut Events) {
        if self.ring.len() < self.limit {
            self.limit = 0;
            let element = Element::Srq(id, self.token);
            events.push(Event::Async { event_type: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, element });
        }
    }
}

/// All shared receive queues of an engine.
#[derive(Debug, Default)]
pub(super) struct SrqTable {
    slots: Vec<Option<Srq>>,
}

impl SrqTable {
    pub(super) fn create(&mut self, init: &SrqInit) -> Result<SrqId, Errno> {
        if init.max_wr > MAX_SRQ_WR || init.max_sge as usize > MAX_SGE {
            return Err(Errno::INVAL);
        }
        let ring = RecvQueue::new(init.max_wr, init.max_sge)?;
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let id = u32::try_from(index).ok().filter(|id| *id < MAX_SRQ).ok_or(Errno::NOMEM)?;
        if index == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index] = Some(Srq { ring, pd: init.pd, token: init.token, limit: 0, users: 0 });
        Ok(SrqId(id))
    }

    fn get(&self, id: SrqId) -> Result<&Srq, Errno> {
        self.slots.get(id.0 as usize).and_then(Option::as_ref).ok_or(Errno::INVAL)
    }

    #[inline]
    fn get_mut(&mut self, id: SrqId) -> Result<&mut Srq, Errno> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(Errno::INVAL)
    }

    /// Destroys a queue and returns its domain.
    pub(super) fn destroy(&mut self, id: SrqId) -> Result<PdId, Errno> {
        let srq = self.get(id)?;
        if srq.users != 0 {
            return Err(Errno::BUSY);
        }
        let pd = srq.pd;
        self.slots[id.0 as usize] = None;
        Ok(pd)
    }

    /// Changes the depth, arms the limit event, or both; nothing if either is not possible. A limit
    /// of 0 disarms the event. The event is raised at once if too few requests are left already.
    pub(super) fn modify(
        &mut self,
        id: SrqId,
        max_wr: Option<u32>,
        limit: Option<u32>,
        events: &mut Events,
    ) -> Result<(), Errno> {
        let srq = self.get_mut(id)?;
        let depth = max_wr.unwrap_or(srq.ring.limit());
        if depth > MAX_SRQ_WR || depth < srq.ring.len() || limit.unwrap_or(srq.limit) > depth {
            return Err(Errno::INVAL);
        }
        if max_wr.is_some() {
            srq.ring = srq.ring.resized(depth)?;
        }
        if let Some(limit) = limit {
            srq.limit = limit;
            srq.check_limit(id, events);
        }
        Ok(())
    }

    pub(super) fn query(&self, id: SrqId) -> Result<SrqStatus, Errno> {
        let srq = self.get(id)?;
        Ok(SrqStatus { max_wr: srq.ring.limit(), limit: srq.limit })
    }

    /// Returns a queue's domain and the length of the longest scatter list.
    pub(super) fn describe(&self, id: SrqId) -> Result<(PdId, usize), Errno> {
        self.get(id).map(|srq| (srq.pd, srq.ring.max_sge()))
    }

    /// Counts one more queue pair that uses a queue.
    pub(super) fn enter(&mut self, id: SrqId) {
        if let Ok(srq) = self.get_mut(id) {
            srq.users += 1;
        }
    }

    /// Counts one fewer queue pair that uses a queue.
    pub(super) fn leave(&mut self, id: SrqId) {
        if let Ok(srq) = self.get_mut(id) {
            srq.users = srq.users.saturating_sub(1);
        }
    }

    #[inline]
    pub(super) fn post(&mut self, id: SrqId, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        let srq = self.get_mut(id)?;
        srq.ring.admit(list)?;
        srq.ring.push(wr_id, list);
        Ok(())
    }

    /// Returns the length of the oldest request.
    pub(super) fn front_len(&self, id: SrqId) -> Option<u32> {
        self.get(id).ok()?.ring.front().map(|(wqe, _)| wqe.total)
    }

    /// Takes the oldest request and copies its scatter list to `list`, which has space for the
    /// longest one.
    #[inline]
    pub(super) fn take(&mut self, id: SrqId, list: &mut [ibv_sge], events: &mut Events) -> Option<RecvWqe> {
        let srq = self.get_mut(id).ok()?;
        let (wqe, entries) = srq.ring.front()?;
        for (to, from) in list.iter_mut().zip(entries) {
            *to = *from;
        }
        srq.ring.pop();
        srq.check_limit(id, events);
        Some(wqe)
    }
}
