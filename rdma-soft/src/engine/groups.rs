//! Multicast groups: for each group, the queue pairs of this process and the other processes that
//! are in the group.
//!
//! The driver finds the other processes of a group. Its answer is valid for a while; then the next
//! datagram to the group makes the engine ask again.

use super::grh::Gid;
use super::limits::{MAX_ATTACHMENTS, MAX_GROUP_QPS, MAX_GROUPS};
use super::types::{Errno, Slot};

/// The most groups whose members are known or looked up. Datagrams to further groups are lost.
const MAX_KNOWN: usize = 64;

/// A group to which queue pairs of this process send, and its members.
#[derive(Debug)]
struct Known {
    gid: Gid,
    /// Distinguishes this record from earlier ones of the same group.
    serial: u32,
    /// The other processes in the group, in order; `None` while the driver looks for them.
    members: Option<Vec<Slot>>,
    /// Queue pairs that wait for the driver's answer.
    waiting: Vec<u32>,
}

/// The next destination of a datagram to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This process.
    Member(Slot),
    /// No further member.
    End,
    /// Not known yet: the driver looks for the members.
    Later,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Attachments: queue pairs of this process and their groups.
    attached: Vec<(Gid, u32)>,
    known: Vec<Known>,
    serial: u32,
}

impl Groups {
    /// Attaches a queue pair to a group, once; true if it is the first one of the process there.
    pub(super) fn attach(&mut self, gid: Gid, qp: u32) -> Result<bool, Errno> {
        let here = self.attached.iter().filter(|(group, _)| *group == gid).count();
        if self.attached.contains(&(gid, qp)) {
            return Ok(false);
        }
        let mut groups: Vec<Gid> = self.attached.iter().map(|(group, _)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        let full = here >= MAX_GROUP_QPS as usize
            || self.attached.len() >= MAX_ATTACHMENTS as usize
            || (here == 0 && groups.len() >= MAX_GROUPS as usize);
        if full {
            return Err(Errno::NOMEM);
        }
        self.attached.push((gid, qp));
        Ok(here == 0)
    }

    /// Detaches a queue pair from a group; true if no queue pair of the process is left there.
    pub(super) fn detach(&mut self, gid: Gid, qp: u32) -> Result<bool, Errno> {
        let at = self.attached.iter().position(|entry| *entry == (gid, qp)).ok_or(Errno::INVAL)?;
        self.attached.remove(at);
        Ok(!self.has_members_here(gid))
    }

    /// Returns a group that a queue pair is in.
    pub(super) fn group_of(&self, qp: u32) -> Option<Gid> {
        self.attached.iter().find(|(_, member)| *member == qp).map(|(gid, _)| *gid)
    }

    /// Returns the first queue pair of this process in a group at or after index `from` of the
    /// attachments, and the index behind it. A walk over all members is therefore one pass, however
    /// many there are.
    pub(super) fn member_here(&self, gid: Gid, from: usize) -> Option<(u32, usize)> {
        let at = from + self.attached.get(from..)?.iter().position(|(group, _)| *group == gid)?;
        Some((self.attached[at].1, at + 1))
    }

    fn has_members_here(&self, gid: Gid) -> bool {
        self.attached.iter().any(|(group, _)| *group == gid)
    }

    /// Returns the first process in a group whose slot is at least `from`; `own` is the slot of
    /// this process. The second value says whether the driver must be asked for the group's
    /// members.
    pub(super) fn next(&mut self, gid: Gid, from: u16, own: Slot, qp: u32) -> (Next, bool) {
        let Some(at) = self.known.iter().position(|known| known.gid == gid) else {
            if self.known.len() >= MAX_KNOWN {
                let Some(old) = self.known.iter().position(|known| known.members.is_some()) else {
                    return (Next::End, false);
                };
                self.known.swap_remove(old);
            }
            self.serial = self.serial.wrapping_add(1);
            self.known.push(Known { gid, serial: self.serial, members: None, waiting: vec![qp] });
            return (Next::Later, true);
        };
        let known = &mut self.known[at];
        let Some(members) = &known.members else {
            if !known.waiting.contains(&qp) {
                known.waiting.push(qp);
            }
            return (Next::Later, false);
        };
        // Binary search keeps each step short: any process can claim that a group has many members.
        let other = members.get(members.partition_point(|slot| slot.0 < from)).copied();
        let own = Some(own).filter(|own| own.0 >= from && self.has_members_here(gid));
        let next = other.into_iter().chain(own).min();
        (next.map_or(Next::End, Next::Member), false)
    }

    /// Stores the members of a group that the driver has found. Returns the queue pairs that wait
    /// for them, and a serial number for [`expire`](Self::expire).
    pub(super) fn found(&mut self, gid: Gid, mut members: Vec<Slot>) -> Option<(Vec<u32>, u32)> {
        members.sort_unstable();
        members.dedup();
        let known = self.known.iter_mut().find(|known| known.gid == gid)?;
        known.members = Some(members);
        Some((core::mem::take(&mut known.waiting), known.serial))
    }

    /// Forgets the members that were found with this serial number.
    pub(super) fn expire(&mut self, serial: u32) {
        self.known.retain(|known| known.serial != serial || known.members.is_none());
    }

    /// Whether a queue pair waits for the members of a group.
    pub(super) fn is_waited_for(&self) -> bool {
        self.known.iter().any(|known| !known.waiting.is_empty())
    }

    /// Removes a queue pair from the waiting lists of all groups.
    pub(super) fn forget(&mut self, qp: u32) {
        for known in &mut self.known {
            known.waiting.retain(|waiting| *waiting != qp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Slot = Slot(5);

    fn gid(last: u8) -> Gid {
        Gid::from_ipv4([239, 0, 0, last])
    }

    #[test]
    fn a_queue_pair_is_in_a_group_once() {
        let mut groups = Groups::default();
        assert_eq!(groups.attach(gid(1), 7), Ok(true));
        assert_eq!(groups.attach(gid(1), 7), Ok(false));
        assert_eq!(groups.attach(gid(1), 8), Ok(false));
        assert_eq!(groups.attach(gid(2), 7), Ok(true));
        assert_eq!(groups.attach(gid(1), 9), Ok(false));
        let all = |gid| {
            let next = |&(_, from): &(u32, usize)| groups.member_here(gid, from);
            std::iter::successors(groups.member_here(gid, 0), next).map(|(qp, _)| qp).collect::<Vec<_>>()
        };
        assert_eq!((all(gid(1)), all(gid(2)), all(gid(3))), (vec![7, 8, 9], vec![7], vec![]));
        assert_eq!((groups.detach(gid(2), 7), groups.detach(gid(1), 9)), (Ok(true), Ok(false)));
        assert_eq!(groups.detach(gid(2), 7), Err(Errno::INVAL));
        assert_eq!(groups.detach(gid(1), 7), Ok(false));
        assert_eq!(groups.detach(gid(1), 7), Err(Errno::INVAL));
        assert_eq!((groups.group_of(7), groups.group_of(8)), (None, Some(gid(1))));
        assert_eq!(groups.detach(gid(1), 8), Ok(true));
        for qp in 0..MAX_GROUP_QPS {
            groups.attach(gid(1), qp).unwrap();
        }
        assert_eq!(groups.attach(gid(1), MAX_GROUP_QPS), Err(Errno::NOMEM));
    }

    #[test]
    fn each_process_comes_once_and_in_order() {
        let mut groups = Groups::default();
        assert_eq!(groups.next(gid(1), 0, OWN, 3), (Next::Later, true));
        assert_eq!(groups.next(gid(1), 0, OWN, 3), (Next::Later, false));
        assert_eq!(groups.next(gid(1), 0, OWN, 4), (Next::Later, false));
        groups.forget(4);
        let (waiting, serial) = groups.found(gid(1), vec![Slot(9), Slot(2), Slot(9)]).unwrap();
        assert_eq!(waiting, [3]);
        groups.attach(gid(1), 7).unwrap();
        for (from, next) in [(0, Next::Member(Slot(2))), (3, Next::Member(OWN)), (6, Next::Member(Slot(9)))] {
            assert_eq!(groups.next(gid(1), from, OWN, 3), (next, false));
        }
        assert_eq!(groups.next(gid(1), 10, OWN, 3), (Next::End, false));
        groups.expire(serial);
        assert_eq!(groups.next(gid(1), 10, OWN, 3), (Next::Later, true));
        assert_eq!(groups.found(gid(9), Vec::new()), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut groups = Groups::default();
        for last in 0..u8::try_from(MAX_KNOWN).unwrap() {
            assert_eq!(groups.next(gid(last), 0, OWN, 3), (Next::Later, true));
        }
        assert_eq!(
            groups.next(gid(200), 0, OWN, 3),
            (Next::End, false),
            "nothing can be dropped while it is looked for"
        );
        groups.found(gid(0), Vec::new()).unwrap();
        assert_eq!(groups.next(gid(200), 0, OWN, 3), (Next::Later, true));
        assert_eq!(groups.known.len(), MAX_KNOWN);
    }
}
