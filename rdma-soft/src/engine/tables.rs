//! The state that the queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use super::counters::Counters;
use super::cq::CqTable;
use super::directory::Directory;
use super::errand::{Errand, Grant};
use super::events::Events;
use super::fault::Faults;
use super::foreign::{Copies, CopyId, CopyJob, Direction, ForeignRange, Waiter};
use super::groups::Groups;
use super::limits::QPS_PER_SLOT;
use super::mr::{MrTable, PdTable};
use super::peers::{Peers, Purpose, Reach};
use super::srq::SrqTable;
use super::timer::Timers;
use super::types::{Errno, Host, LinkId, PeerId, QpId, Slot};
use super::wire::{Frame, Kind};

/// All state of an engine except for the queue pairs.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) pds: PdTable,
    /// Number of address handles.
    pub(super) ahs: u32,
    pub(super) mrs: MrTable,
    pub(super) cqs: CqTable,
    pub(super) srqs: SrqTable,
    pub(super) events: Events,
    pub(super) peers: Peers,
    pub(super) groups: Groups,
    pub(super) timers: Timers,
    pub(super) directory: Directory,
    /// This process's slots, in the order in which the table of queue pairs has them.
    pub(super) slots: Vec<Slot>,
    /// Whether acknowledgements that become due are deferred.
    pub(super) defer_acks: bool,
    /// The queue pairs whose acknowledgements are deferred.
    pub(super) deferred: Vec<u32>,
    /// The copies of foreign memory that have not ended.
    pub(super) copies: Copies,
    /// Work for the driver.
    pub(super) errands: VecDeque<Errand>,
    /// The plan of faults, if one is set.
    pub(super) faults: Option<Box<Faults>>,
    pub(super) counters: Counters,
    /// See [`EngineConfig::keys_are_secret`](super::EngineConfig::keys_are_secret).
    pub(super) keys_are_secret: bool,
}

/// The most errands that wait for the driver when a peer asks for a region. If a peer asks for more
/// regions at a time, the further requests are dropped.
const MAX_GRANTS: usize = 1 << 10;

impl Tables {
    /// Handles a peer's request to map a region of this engine.
    pub(super) fn grant(&mut self, link: LinkId, key: u32) {
        match self.mrs.grant(key, link) {
            None => self.revoke(link, key),
            Some((backing, len)) if self.errands.len() < MAX_GRANTS => {
                // The offset is 0: only regions that fill their file have a backing.
                let backing = Arc::clone(backing);
                self.errands.push_back(Errand::Grant(Grant { link, rkey: key, backing, offset: 0, len }));
            }
            Some(_) => {}
        }
    }

    /// Tells a peer that a region has ended.
    fn revoke(&mut self, link: LinkId, key: u32) {
        let mut frame = Frame::new(Kind::Revoked, 0, u32::from(self.slots[0].0) << 12, 0, 0);
        frame.key = key;
        self.peers.push_control(link, &frame);
    }

    /// Has the driver copy `bytes.len()` bytes between the start of a range and `bytes`.
    pub(super) fn copy(
        &mut self,
        (qp, waiter): (QpId, Waiter),
        direction: Direction,
        range: &ForeignRange,
        bytes: Vec<u8>,
    ) -> CopyId {
        let id = self.copies.begin(range.key, qp, waiter);
        let (address, copier) = (range.address, Arc::clone(&range.copier));
        self.errands.push_back(Errand::Copy(CopyJob { id, direction, address, bytes, copier }));
        id
    }

    /// Deregisters a region, and tells the peers that may have mapped it.
    pub(super) fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        self.mrs.begin_to_end(lkey)?;
        if self.copies.uses_region(lkey) {
            return Err(Errno::AGAIN);
        }
        let (pd, granted) = self.mrs.remove(lkey)?;
        self.directory.withdraw_region(lkey);
        self.pds.leave(pd);
        granted.into_iter().for_each(|link| self.revoke(link, lkey));
        Ok(())
    }

    /// Deregisters a region, and gives its key to another one.
    pub(super) fn replace_region(&mut self, lkey: u32, by: u32) -> Result<(), Errno> {
        self.deregister(lkey)?;
        self.mrs.rename(by, lkey, &self.directory)
    }

    /// Returns how an unreliable message reaches a process.
    pub(super) fn reach(&mut self, peer: PeerId, purpose: Purpose) -> Reach {
        self.peers.reach(peer, purpose, &mut self.timers)
    }

    /// Returns the index of a queue pair, if it belongs to this process.
    #[inline]
    pub(super) fn own_index(&self, host: Host, qpn: u32) -> Option<u32> {
        let slot = Slot::of_qpn(qpn);
        let ordinal = (0..).zip(&self.slots).find(|(_, own)| **own == slot && host == Host::LOCAL)?.0;
        Some(ordinal * QPS_PER_SLOT + qpn % QPS_PER_SLOT)
    }
}
