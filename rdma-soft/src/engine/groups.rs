//! Multicast groups: which queue pairs of this process are in one, and which other processes have
//! some in it.
//!
//! Who else is in a group is the driver's to find out. What it finds is good for a while; then the
//! next datagram to the group has it look again.

use super::grh::Gid;
use super::limits::{MAX_ATTACHMENTS, MAX_GROUP_QPS, MAX_GROUPS};
use super::types::{Errno, Slot};

/// Groups whose members are known or looked up. Datagrams to more groups at a time are lost.
const MAX_KNOWN: usize = 64;

/// The members of a group to which a queue pair of this process sends.
#[derive(Debug)]
struct Known {
    gid: Gid,
    /// Tells it from what was known of the group before.
    serial: u32,
    /// The other processes in it, in order; `None` while that is looked for.
    members: Option<Vec<Slot>>,
    /// Queue pairs that wait for the answer.
    waiting: Vec<u32>,
}

/// Where a datagram to a group goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// To this process.
    Member(Slot),
    /// No further member.
    End,
    /// That is being looked for.
    Later,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Queue pairs of this process and their groups.
    attached: Vec<(Gid, u32)>,
    known: Vec<Known>,
    serial: u32,
}

impl Groups {
    /// Puts a queue pair into a group, once; true if it is the process's first one in it.
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

    /// Takes a queue pair out of a group; true if none of the process is left in it.
    pub(super) fn detach(&mut self, gid: Gid, qp: u32) -> Result<bool, Errno> {
        let at = self.attached.iter().position(|entry| *entry == (gid, qp)).ok_or(Errno::INVAL)?;
        self.attached.remove(at);
        Ok(!self.has_members_here(gid))
    }

    /// A group that a queue pair is in.
    pub(super) fn group_of(&self, qp: u32) -> Option<Gid> {
        self.attached.iter().find(|(_, member)| *member == qp).map(|(gid, _)| *gid)
    }

    /// The first queue pair of this process in a group from a place on, and the place after it: one
    /// after the other, however many there are, in one pass.
    pub(super) fn member_here(&self, gid: Gid, from: usize) -> Option<(u32, usize)> {
        let at = from + self.attached.get(from..)?.iter().position(|(group, _)| *group == gid)?;
        Some((self.attached[at].1, at + 1))
    }

    fn has_members_here(&self, gid: Gid) -> bool {
        self.attached.iter().any(|(group, _)| *group == gid)
    }

    /// The first process in a group whose slot is at least `from`; `own` is ours. The second value
    /// says that the driver must be asked for the group's members.
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
        // Anybody can say that many are in it, so each step is a short one.
        let other = members.get(members.partition_point(|slot| slot.0 < from)).copied();
        let own = Some(own).filter(|own| own.0 >= from && self.has_members_here(gid));
        let next = other.into_iter().chain(own).min();
        (next.map_or(Next::End, Next::Member), false)
    }

    /// The driver has found out who is in a group: which queue pairs wait for it, and a number for
    /// [`expire`](Self::expire).
    pub(super) fn found(&mut self, gid: Gid, mut members: Vec<Slot>) -> Option<(Vec<u32>, u32)> {
        members.sort_unstable();
        members.dedup();
        let known = self.known.iter_mut().find(|known| known.gid == gid)?;
        known.members = Some(members);
        Some((core::mem::take(&mut known.waiting), known.serial))
    }

    /// What was found is old.
    pub(super) fn expire(&mut self, serial: u32) {
        self.known.retain(|known| known.serial != serial || known.members.is_none());
    }

    /// Whether a queue pair waits for the members of a group.
    pub(super) fn is_waited_for(&self) -> bool {
        self.known.iter().any(|known| !known.waiting.is_empty())
    }

    /// A queue pair no longer waits.
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
