//! What the queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cq::CqTable;
use super::directory::Directory;
use super::events::Events;
use super::groups::Groups;
use super::limits::QPS_PER_SLOT;
use super::mr::{MrTable, PdTable, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::peers::Peers;
use super::timer::Timers;
use super::types::{Grant, LinkId, Slot};

/// Everything but the queue pairs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pds: PdTable,
    pub(super) mrs: MrTable,
    pub(super) cqs: CqTable,
    pub(super) events: Events,
    pub(super) peers: Peers,
    pub(super) groups: Groups,
    pub(super) timers: Timers,
    pub(super) directory: Directory,
    /// Our own, in the order in which the table of queue pairs has them.
    pub(super) slots: Vec<Slot>,
    /// Acknowledgements that become due are put off.
    pub(super) defer_acks: bool,
    /// The queue pairs whose acknowledgements were.
    pub(super) deferred: Vec<u32>,
    /// Regions that peers asked for.
    pub(super) grants: VecDeque<Grant>,
}

/// Wishes of peers that wait for the driver. Who asks for more than this at a time does not get it.
const MAX_GRANTS: usize = 1 << 10;

impl Shared {
    /// A peer would like to map one of our regions.
    pub(super) fn grant(&mut self, link: LinkId, key: u32) {
        let Some(mr) = self.mrs.find(key) else { return };
        let Some(backing) = mr.backing.as_ref().filter(|_| self.grants.len() < MAX_GRANTS) else { return };
        if mr.region.access() & (REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC) != 0 {
            // Only whole files are kept as backing.
            let (backing, offset, len) = (Arc::clone(backing), 0, mr.region.len());
            self.grants.push_back(Grant { link, rkey: key, backing, offset, len });
        }
    }

    /// The index of a queue pair number under one of our slots.
    pub(super) fn own_index(&self, qpn: u32) -> Option<u32> {
        let slot = Slot::of_qpn(qpn);
        let ordinal = self.slots.iter().position(|own| *own == slot)?;
        u32::try_from(ordinal).ok().map(|ordinal| ordinal * QPS_PER_SLOT + qpn % QPS_PER_SLOT)
    }
}
