//! The state that the queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cq::CqTable;
use super::directory::Directory;
use super::events::Events;
use super::frame::{Frame, Kind};
use super::groups::Groups;
use super::limits::QPS_PER_SLOT;
use super::mr::{MrTable, PdTable};
use super::peers::{Peers, Reach};
use super::srq::SrqTable;
use super::timer::Timers;
use super::types::{Errno, Grant, Host, LinkId, PeerId, Slot};

/// All state of an engine except for the queue pairs.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) pds: PdTable,
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
    /// Answers to peers that asked to map regions.
    pub(super) grants: VecDeque<Grant>,
}

/// The most grants that wait for the driver. If a peer asks for more regions at a time, the further
/// requests are dropped.
const MAX_GRANTS: usize = 1 << 10;

impl Tables {
    /// Handles a peer's request to map a region of this engine.
    pub(super) fn grant(&mut self, link: LinkId, key: u32) {
        match self.mrs.grant(key, link) {
            None => self.revoke(link, key),
            Some((backing, len)) if self.grants.len() < MAX_GRANTS => {
                // The offset is 0: only regions that fill their file have a backing.
                self.grants.push_back(Grant { link, rkey: key, backing: Arc::clone(backing), offset: 0, len });
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

    /// Deregisters a region, and tells the peers that may have mapped it.
    pub(super) fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        let (pd, granted) = self.mrs.remove(lkey)?;
        self.directory.withdraw_region(lkey);
        self.pds.leave(pd);
        granted.into_iter().for_each(|link| self.revoke(link, lkey));
        Ok(())
    }

    /// Returns how a datagram reaches a process.
    pub(super) fn reach(&mut self, peer: PeerId, is_member: bool) -> Reach {
        self.peers.reach(peer, is_member, &mut self.timers)
    }

    /// Returns the index of a queue pair, if it belongs to this process.
    #[inline]
    pub(super) fn own_index(&self, host: Host, qpn: u32) -> Option<u32> {
        let slot = Slot::of_qpn(qpn);
        let ordinal = (0..).zip(&self.slots).find(|(_, own)| **own == slot && host == Host::LOCAL)?.0;
        Some(ordinal * QPS_PER_SLOT + qpn % QPS_PER_SLOT)
    }
}
