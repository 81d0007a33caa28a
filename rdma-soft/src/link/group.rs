//! Membership of multicast groups across processes. A member binds an abstract socket whose name
//! contains the group's address, and a sender reads the kernel's list of names. As with
//! [slots](super::slot), the kernel forgets a name when its process dies.
//!
//! Nothing is ever sent to these sockets. A process of another user can bind such names, too: the
//! process behind such a name either refuses a link, or is not in the group and drops the
//! datagrams.
//!
//! A register in shared memory would outlive its processes, and telling every process would need a
//! link to every process. The list of names is used for a while (`node/groups.rs`), so a new member
//! may miss the datagrams of that time.

use std::io;

use crate::engine::{Gid, Slot};
use crate::os::Result;
use crate::os::socket::{self, Socket};

/// Prefix of the names. The slot, the group's address in hexadecimal, and a number that makes the
/// name unique follow.
const PREFIX: &str = "rdma-soft-group-";

/// Limit of the members of one group that datagrams are sent to.
const MAX_MEMBERS: usize = 1 << 10;

fn hex(gid: Gid) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Announces that the process with `slot` is in a group, until the socket is dropped.
///
/// `number` is random: any process could bind a predictable name first, and a forked child that has
/// not run yet still holds its parent's names.
pub(crate) fn join(slot: Slot, gid: Gid, number: u64) -> Result<Socket> {
    let socket = Socket::new()?;
    socket.bind(&format!("{PREFIX}{}-{}-{number:x}", slot.0, hex(gid)))?;
    Ok(socket)
}

/// The slots of the members of each group, in the order of `gids`.
pub(crate) fn members(gids: &[Gid]) -> io::Result<Vec<Vec<Slot>>> {
    Ok(find(&socket::names(PREFIX)?, gids))
}

fn find(names: &[String], gids: &[Gid]) -> Vec<Vec<Slot>> {
    let wanted: Vec<String> = gids.iter().map(|gid| hex(*gid)).collect();
    let mut members = vec![Vec::new(); gids.len()];
    for name in names {
        let mut parts = name[PREFIX.len()..].split('-');
        let (Some(slot), Some(gid)) = (parts.next(), parts.next()) else { continue };
        let Ok(slot) = slot.parse().map(Slot) else { continue };
        let index = wanted.iter().position(|wanted| wanted == gid);
        if let Some(members) = index.map(|index| &mut members[index]) {
            if slot.is_real() && !members.contains(&slot) && members.len() < MAX_MEMBERS {
                members.push(slot);
            }
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        // An address that no real program and no concurrent test process uses.
        let id = std::process::id().to_be_bytes();
        Gid([0xff, 0x1e, 0x74, 0x65, 0x73, 0x74, 0, 0, id[0], id[1], id[2], id[3], 0, 0, 0, last])
    }

    #[test]
    fn who_joins_is_found_until_it_leaves() {
        let first = join(Slot(7), gid(1), 1).unwrap();
        let _other = join(Slot(8), gid(2), 2).unwrap();
        let second = join(Slot(9), gid(1), u64::MAX).unwrap();
        let find = || {
            let mut found = members(&[gid(1), gid(2), gid(3)]).unwrap();
            found.iter_mut().for_each(|slots| slots.sort_unstable());
            found
        };
        assert_eq!(find(), [vec![Slot(7), Slot(9)], vec![Slot(8)], vec![]]);
        drop(first);
        assert_eq!(find()[0], [Slot(9)]);
        drop(second);
        assert!(find()[0].is_empty());
    }

    #[test]
    fn names_with_anything_in_them_are_read() {
        let hex = hex(gid(1));
        let mut names = [
            format!("{PREFIX}12-{hex}-3"),
            format!("{PREFIX}12-{hex}-4"),
            format!("{PREFIX}0-{hex}-4"),
            format!("{PREFIX}4095-{hex}-4"),
            format!("{PREFIX}99999999-{hex}-4"),
            format!("{PREFIX}-{hex}"),
            format!("{PREFIX}13"),
            format!("{PREFIX}15-{hex}"),
            format!("{PREFIX}16-{}-3", hex.to_uppercase()),
            PREFIX.to_owned(),
        ]
        .to_vec();
        assert_eq!(find(&names, &[gid(1)]), [vec![Slot(12), Slot(15)]]);
        names.extend((0..MAX_MEMBERS + 10).map(|count| format!("{PREFIX}{}-{hex}-1", count + 100)));
        assert_eq!(find(&names, &[gid(1)])[0].len(), MAX_MEMBERS);
    }
}
