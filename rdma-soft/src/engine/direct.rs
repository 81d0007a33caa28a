//! One-sided operations that the requester does itself: the target's memory is in this process, or mapped from its.
//!
//! The target's queue pair and region are checked as its own engine would check them; on any doubt the request goes through
//! the link, and the target's engine says what is wrong. Order is kept: a write may overtake sends that are not yet
//! answered, but no change of memory; what fetches data starts only when nothing is under way.

use super::memory::{Atomic, Source, Target};
use super::mr::right_of;
use super::qp::Qp;
use super::queue::{Op, SendWqe};
use super::shared::Shared;
use super::types::{LinkId, PdId};

/// How an attempt to do without the link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// Use the link.
    No,
    /// Some of it is done; the budget is spent.
    Partly,
    /// All of it.
    Done,
}

/// Where the target is.
#[derive(Clone, Copy)]
enum Place {
    /// In this process, in the domain.
    Here(PdId),
    /// Behind the link, mapped; the request's first byte is this far into the mapping.
    Mapped(LinkId, usize),
}

impl Qp {
    /// Does the request at `sq.next` without the link, or a part of it, if that is possible.
    pub(super) fn try_direct(&mut self, shared: &mut Shared, budget: &mut usize) -> Direct {
        let wqe = self.sq.at(self.sq.next);
        let in_order = match wqe.op {
            Op::Send => false,
            Op::Write => self.req.may_overtake(),
            _ => self.req.is_idle() && self.sq.head == self.sq.next,
        };
        if !in_order || wqe.total == 0 || wqe.written {
            return Direct::No;
        }
        let Some(place) = self.place(wqe, shared) else { return Direct::No };
        if *budget == 0 {
            return Direct::Partly;
        }
        let at = wqe.progress as usize;
        let len = (wqe.total as usize - at).min((*budget).max(64));
        *budget = budget.saturating_sub(len.max(64));
        let total = wqe.total;
        let done = if wqe.op == Op::Write {
            self.write_directly(wqe, place, at, len, shared)
        } else if wqe.op == Op::Read {
            self.read_directly(wqe, place, at, len, shared)
        } else {
            self.change_directly(wqe, place, shared)
        };
        if done.is_none() {
            self.sq.at_mut(self.sq.next).progress = 0;
            return Direct::No;
        }
        #[allow(clippy::cast_possible_truncation, reason = "no more than the message's length")]
        let end = (at + len) as u32;
        if end < total {
            self.sq.at_mut(self.sq.next).progress = end;
            return Direct::Partly;
        }
        Direct::Done
    }

    /// Finds the target and checks what its engine would check.
    fn place(&self, wqe: &SendWqe, shared: &mut Shared) -> Option<Place> {
        let right = right_of(wqe.op);
        let dest = self.attr.dest_qpn;
        if let Some(index) = shared.own_index(dest) {
            let pd = shared.directory.card(index).and_then(|card| card.admits(self.qpn, right))?;
            return Some(Place::Here(pd));
        }
        let link = shared.peers.link_of(self.peer())?;
        let directory = shared.peers.directory(link, self.peer())?;
        let pd = directory.card(dest).admits(self.qpn, right)?;
        let entry = directory.entry(wqe.rkey, pd, right)?;
        let offset = wqe.remote_addr.checked_sub(entry.iova)?;
        if offset > entry.len || u64::from(wqe.total) > entry.len - offset {
            return None;
        }
        if !shared.peers.is_mapped(link, wqe.rkey, entry.serial) {
            shared.peers.want_mapping(link, wqe.rkey, entry.serial, dest, self.qpn);
            return None;
        }
        Some(Place::Mapped(link, usize::try_from(offset).ok()?))
    }

    fn write_directly(&self, wqe: &SendWqe, place: Place, at: usize, len: usize, shared: &Shared) -> Option<()> {
        let target = target(wqe, place, shared)?.part(at, len)?;
        let copied = if wqe.inline {
            target.write(self.sq.inline(self.sq.next).part(at, len)?);
            true
        } else {
            let list = self.sq.list(self.sq.next);
            shared.mrs.gather(self.pd, list, wqe.progress, len, |gather| gather.copy_to(target))?
        };
        copied.then_some(())
    }

    fn read_directly(&self, wqe: &SendWqe, place: Place, at: usize, len: usize, shared: &Shared) -> Option<()> {
        let total = wqe.total as usize;
        let source = match place {
            Place::Here(pd) => {
                shared.mrs.remote_source(wqe.rkey, pd, right_of(wqe.op), wqe.remote_addr, total)?.part(at, len)?
            }
            Place::Mapped(link, offset) => shared.peers.mapping(link, wqe.rkey)?.source(offset + at, len)?,
        };
        shared.mrs.scatter(self.pd, self.sq.list(self.sq.next), wqe.progress, source).then_some(())
    }

    fn change_directly(&self, wqe: &SendWqe, place: Place, shared: &Shared) -> Option<()> {
        if wqe.remote_addr % 8 != 0 {
            return None;
        }
        let change = match wqe.op {
            Op::CompareSwap => Atomic::CompareSwap { compare: wqe.compare_add, swap: wqe.swap },
            _ => Atomic::Add(wqe.compare_add),
        };
        let result = target(wqe, place, shared)?.atomic(change)?.to_ne_bytes();
        // The list was checked just before, under the same lock: it holds the result.
        let _ = shared.mrs.scatter(self.pd, self.sq.list(self.sq.next), 0, Source::of(&result));
        Some(())
    }
}

fn target<'a>(wqe: &SendWqe, place: Place, shared: &'a Shared) -> Option<Target<'a>> {
    let total = wqe.total as usize;
    match place {
        Place::Here(pd) => shared.mrs.remote_target(wqe.rkey, pd, right_of(wqe.op), wqe.remote_addr, total),
        Place::Mapped(link, offset) => shared.peers.mapping(link, wqe.rkey)?.target(offset, total),
    }
}
