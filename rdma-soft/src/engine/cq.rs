//! Completion queues.

use core::fmt;

use rdma_sys::{ibv_event_type, ibv_wc, ibv_wc_flags, ibv_wc_status};

use super::events::Events;
use super::limits::{MAX_CQ, MAX_CQE};
use super::types::{CqId, Element, Errno, Event, Time};

/// The completions for which a queue raises its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// The times of the completions in a ring, at the same positions.
struct Times {
    clock: fn() -> Time,
    ring: Box<[Time]>,
}

/// A completion queue.
pub(super) struct Cq {
    ring: Box<[ibv_wc]>,
    /// For queues with timestamps.
    times: Option<Times>,
    limit: u32,
    head: u64,
    tail: u64,
    /// The tail when the latest event was raised.
    announced: u64,
    armed: Armed,
    failed: bool,
    users: u32,
    token: u64,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("waiting", &self.waiting()).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Cq {
    const fn waiting(&self) -> u64 {
        self.tail - self.head
    }

    /// Raises the event of the completions that wait.
    fn raise(&mut self, id: CqId, events: &mut Events) {
        self.armed = Armed::No;
        self.announced = self.tail;
        events.push(Event::Completion { cq: id, token: self.token });
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked to the ring's size")]
    const fn index(&self, position: u64) -> usize {
        position as usize & (self.ring.len() - 1)
    }
}

fn make_ring(depth: u32) -> Result<Box<[ibv_wc]>, Errno> {
    if depth == 0 || depth > MAX_CQE {
        return Err(Errno::INVAL);
    }
    make_slots(depth.next_power_of_two() as usize)
}

fn make_slots<T: Clone + Default>(len: usize) -> Result<Box<[T]>, Errno> {
    let mut slots = Vec::new();
    slots.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    slots.resize(len, T::default());
    Ok(slots.into_boxed_slice())
}

/// All completion queues of an engine.
#[derive(Debug, Default)]
pub(super) struct CqTable {
    slots: Vec<Option<Cq>>,
    /// Queues that overran, and whose queue pairs are not in ERR yet.
    overrun: Vec<CqId>,
}

impl CqTable {
    pub(super) fn create(&mut self, depth: u32, token: u64) -> Result<CqId, Errno> {
        let ring = make_ring(depth)?;
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let id = u32::try_from(index).ok().filter(|id| *id < MAX_CQ).ok_or(Errno::NOMEM)?;
        if index == self.slots.len() {
            self.slots.push(None);
        }
        let (head, tail, announced) = (0, 0, 0);
        self.slots[index] = Some(Cq {
            ring,
            times: None,
            limit: depth,
            head,
            tail,
            announced,
            armed: Armed::No,
            failed: false,
            users: 0,
            token,
        });
        Ok(CqId(id))
    }

    /// Gives the completions of a new queue the time at which they were added.
    pub(super) fn keep_times(&mut self, id: CqId, clock: fn() -> Time) -> Result<(), Errno> {
        let cq = self.get(id)?;
        cq.times = Some(Times { clock, ring: make_slots(cq.ring.len())? });
        Ok(())
    }

    /// The time of the completion that was polled last; the origin for a queue without times.
    pub(super) fn polled_time(&mut self, id: CqId) -> Time {
        let polled = self.get(id).ok().and_then(|cq| {
            let index = cq.index(cq.head.checked_sub(1)?);
            cq.times.as_ref()?.ring.get(index).copied()
        });
        polled.unwrap_or_default()
    }

    fn get(&mut self, id: CqId) -> Result<&mut Cq, Errno> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(Errno::INVAL)
    }

    pub(super) fn destroy(&mut self, id: CqId) -> Result<(), Errno> {
        if self.get(id)?.users != 0 {
            return Err(Errno::BUSY);
        }
        self.slots[id.0 as usize] = None;
        self.overrun.retain(|cq| *cq != id);
        Ok(())
    }

    pub(super) fn resize(&mut self, id: CqId, depth: u32) -> Result<(), Errno> {
        let mut ring = make_ring(depth)?;
        let cq = self.get(id)?;
        if cq.waiting() > u64::from(depth) {
            return Err(Errno::INVAL);
        }
        for (to, position) in ring.iter_mut().zip(cq.head..cq.tail) {
            *to = cq.ring[cq.index(position)];
        }
        if let Some(times) = &cq.times {
            let mut moved = make_slots(ring.len())?;
            for (to, position) in moved.iter_mut().zip(cq.head..cq.tail) {
                *to = times.ring[cq.index(position)];
            }
            cq.times = Some(Times { clock: times.clock, ring: moved });
        }
        cq.tail -= cq.head;
        cq.announced = cq.announced.saturating_sub(cq.head);
        cq.head = 0;
        cq.ring = ring;
        cq.limit = depth;
        Ok(())
    }

    /// Checks that a queue exists.
    pub(super) fn check(&mut self, id: CqId) -> Result<(), Errno> {
        self.get(id).map(drop)
    }

    /// Counts one more queue pair that uses a queue.
    pub(super) fn enter(&mut self, id: CqId) {
        if let Ok(cq) = self.get(id) {
            cq.users += 1;
        }
    }

    /// Counts one fewer queue pair that uses a queue.
    pub(super) fn leave(&mut self, id: CqId) {
        if let Ok(cq) = self.get(id) {
            cq.users = cq.users.saturating_sub(1);
        }
    }

    #[inline(always)]
    pub(super) fn poll(&mut self, id: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        let cq = self.get(id)?;
        let before = cq.head;
        for to in out {
            if cq.head == cq.tail {
                break;
            }
            *to = cq.ring[cq.index(cq.head)];
            cq.head += 1;
        }
        if cq.head == before && cq.failed {
            return Err(Errno::IO);
        }
        #[allow(clippy::cast_possible_truncation, reason = "no more than `out` has room for")]
        Ok((cq.head - before) as usize)
    }

    /// Arms a queue. Armed for any completion, a queue raises its event at once if it holds a
    /// completion that came after the latest event: UCX relies on that. A completion that had its
    /// event has no second one: perftest relies on that. A queue does not know which of its
    /// completions were solicited, so arming for those only waits for the next one.
    pub(super) fn arm(&mut self, id: CqId, solicited_only: bool, events: &mut Events) -> Result<(), Errno> {
        let cq = self.get(id)?;
        // A later, narrower request does not replace a wider one.
        if !solicited_only && cq.tail > cq.head.max(cq.announced) {
            cq.raise(id, events);
        } else if !solicited_only {
            cq.armed = Armed::Any;
        } else if cq.armed == Armed::No {
            cq.armed = Armed::Solicited;
        }
        Ok(())
    }

    /// Adds a completion, which `fill` writes in place. A push to a full queue puts the queue in
    /// error for good, as on a device.
    #[inline(always)]
    pub(super) fn push(&mut self, id: CqId, solicited: bool, events: &mut Events, fill: impl FnOnce(&mut ibv_wc)) {
        let Some(Some(cq)) = self.slots.get_mut(id.0 as usize) else { return };
        if cq.failed || cq.waiting() >= u64::from(cq.limit) {
            self.overflow(id, events);
            return;
        }
        let index = cq.index(cq.tail);
        let wc = &mut cq.ring[index];
        *wc = ibv_wc::default();
        fill(wc);
        let failed = wc.status != ibv_wc_status::IBV_WC_SUCCESS;
        if let Some(times) = &mut cq.times {
            times.ring[index] = (times.clock)();
        }
        cq.tail += 1;
        if cq.armed == Armed::Any || (cq.armed == Armed::Solicited && (solicited || failed)) {
            cq.raise(id, events);
        }
    }

    /// Puts a queue in error for good.
    #[cold]
    pub(super) fn overflow(&mut self, id: CqId, events: &mut Events) {
        let Ok(cq) = self.get(id) else { return };
        if !core::mem::replace(&mut cq.failed, true) {
            let element = Element::Cq(id, cq.token);
            events.push(Event::Async { event_type: ibv_event_type::IBV_EVENT_CQ_ERR, element });
            self.overrun.push(id);
        }
    }

    /// Removes the completions of a queue pair.
    pub(super) fn purge(&mut self, id: CqId, qpn: u32) {
        let Ok(cq) = self.get(id) else { return };
        let (mut kept, mut announced) = (cq.head, cq.announced.min(cq.head));
        for position in cq.head..cq.tail {
            let wc = cq.ring[cq.index(position)];
            if wc.qp_num != qpn {
                let to = cq.index(kept);
                cq.ring[to] = wc;
                let from = cq.index(position);
                if let Some(times) = &mut cq.times {
                    times.ring[to] = times.ring[from];
                }
                kept += 1;
                if position < cq.announced {
                    announced = kept;
                }
            }
        }
        (cq.tail, cq.announced) = (kept, announced);
    }

    /// Whether a queue overran, and its queue pairs are not in ERR yet.
    pub(super) fn has_overrun(&self) -> bool {
        !self.overrun.is_empty()
    }

    /// Takes a queue that overran. The caller must move the queue's queue pairs to ERR.
    pub(super) fn take_overrun(&mut self) -> Option<CqId> {
        self.overrun.pop()
    }
}

/// Puts an immediate into a completion.
pub(super) fn set_imm(wc: &mut ibv_wc, imm: u32) {
    wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_IMM.0;
    wc.__bindgen_anon_1.imm_data = imm;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(table: &mut CqTable, cq: CqId, wr_id: u64, qpn: u32) {
        table.push(cq, false, &mut Events::default(), |wc| (wc.wr_id, wc.qp_num) = (wr_id, qpn));
    }

    fn poll(table: &mut CqTable, cq: CqId) -> Vec<u64> {
        let mut out = [ibv_wc::default(); 16];
        let count = table.poll(cq, &mut out).unwrap();
        out[..count].iter().map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn a_queue_wraps_and_keeps_its_order_when_it_is_resized() {
        let mut table = CqTable::default();
        let cq = table.create(5, 0).unwrap();
        for round in 0..10 {
            for wr_id in 0..5 {
                push(&mut table, cq, round * 5 + wr_id, 1);
            }
            assert_eq!(table.resize(cq, 4), Err(Errno::INVAL));
            table.resize(cq, 5 + u32::try_from(round).unwrap()).unwrap();
            assert_eq!(poll(&mut table, cq), Vec::from_iter(round * 5..round * 5 + 5));
            table.resize(cq, 5).unwrap();
        }
        assert_eq!(table.create(0, 0), Err(Errno::INVAL));
        assert_eq!(table.create(MAX_CQE + 1, 0), Err(Errno::INVAL));
    }

    #[test]
    fn the_time_of_a_completion_stays_with_it() {
        use core::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut table = CqTable::default();
        let cq = table.create(4, 0).unwrap();
        table.keep_times(cq, || Time(NEXT.fetch_add(1, Ordering::Relaxed))).unwrap();
        let one = |table: &mut CqTable| {
            let mut out = [ibv_wc::default()];
            assert_eq!(table.poll(cq, &mut out), Ok(1));
            (out[0].wr_id, table.polled_time(cq).0)
        };
        for (wr_id, qpn) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
            push(&mut table, cq, wr_id, qpn);
        }
        assert_eq!(one(&mut table), (1, 1));
        table.purge(cq, 2);
        table.resize(cq, 2).unwrap();
        assert_eq!(one(&mut table), (2, 2));
        push(&mut table, cq, 5, 1);
        assert_eq!([one(&mut table), one(&mut table)], [(4, 4), (5, 5)]);
        let plain = table.create(4, 0).unwrap();
        push(&mut table, plain, 1, 1);
        assert_eq!((poll(&mut table, plain), table.polled_time(plain)), (vec![1], Time(0)));
    }

    #[test]
    fn a_purge_takes_one_queue_pairs_completions_and_leaves_the_others_in_order() {
        let mut table = CqTable::default();
        let cq = table.create(8, 0).unwrap();
        for wr_id in 0..6 {
            push(&mut table, cq, wr_id, 0);
        }
        assert_eq!(poll(&mut table, cq).len(), 6);
        for wr_id in 0..8 {
            push(&mut table, cq, wr_id, u32::try_from(wr_id % 3).unwrap());
        }
        table.purge(cq, 1);
        assert_eq!(poll(&mut table, cq), [0, 2, 3, 5, 6]);
    }

    #[test]
    fn a_purge_leaves_the_event_of_what_came_after_the_latest_one() {
        let (mut table, mut events) = (CqTable::default(), Events::default());
        let cq = table.create(8, 0).unwrap();
        table.arm(cq, false, &mut events).unwrap();
        for (wr_id, qpn) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            table.push(cq, false, &mut events, |wc| (wc.wr_id, wc.qp_num) = (wr_id, qpn));
        }
        assert!(events.pop().is_some() && events.is_empty(), "the first completion had the event");
        table.purge(cq, 1);
        table.arm(cq, false, &mut events).unwrap();
        assert!(events.pop().is_some(), "no completion that is left has had an event");
        table.arm(cq, false, &mut events).unwrap();
        assert!(events.is_empty(), "all have had one");
        assert_eq!(poll(&mut table, cq), [1, 3]);
        // What had its event has no second one when others are removed.
        for (wr_id, qpn) in [(4, 1), (5, 2)] {
            table.push(cq, false, &mut events, |wc| (wc.wr_id, wc.qp_num) = (wr_id, qpn));
        }
        assert!(events.pop().is_some(), "armed above");
        table.arm(cq, false, &mut events).unwrap();
        assert!(events.pop().is_some(), "the second completion came after the event");
        table.purge(cq, 1);
        table.arm(cq, false, &mut events).unwrap();
        assert!(events.is_empty());
        assert_eq!(poll(&mut table, cq), [5]);
    }
}
