//! Who is in a multicast group: a process in one binds an abstract Unix socket whose name says so, and who sends to the group
//! reads the kernel's table of names. As with [slots](super::slot), the kernel forgets a name when its process dies.
//!
//! Nothing is ever sent to these sockets. A process of another user can bind such names, too: they lead to processes that either
//! refuse a link or are not in the group and drop what they get.

use std::io;
use std::os::fd::AsRawFd;

use super::private::Private;
use super::slot;
use crate::engine::{Gid, Slot};

/// What the names begin with: then the slot, the group's address in hexadecimal, and a number that makes the name one that nobody
/// has.
const PREFIX: &str = "rdma-soft-group-";

/// So many processes of one group are sent to.
const MAX_MEMBERS: usize = 1 << 10;

/// Where the kernel lists all names.
const TABLE: &str = "/proc/self/net/unix";

fn hex(gid: Gid) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Says that the process with a slot is in a group, until the value is dropped.
///
/// `number` is random: anybody can bind a name that can be foreseen, and a forked child that has not run yet has its parent's.
pub(crate) fn join(slot: Slot, gid: Gid, number: u64) -> io::Result<Private> {
    let socket = slot::named_socket(0)?;
    let (address, len) = slot::abstract_address(&format!("{PREFIX}{}-{}-{number:x}", slot.0, hex(gid)));
    // SAFETY: bind reads `len` bytes, which is at most the size, of a live sockaddr_un.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The processes that are in each of the groups, in the order of the groups.
pub(crate) fn members(gids: &[Gid]) -> io::Result<Vec<Vec<Slot>>> {
    Ok(find(&std::fs::read(TABLE)?, gids))
}

/// The same in a table that was read. Names of others may hold any bytes.
fn find(table: &[u8], gids: &[Gid]) -> Vec<Vec<Slot>> {
    let wanted: Vec<String> = gids.iter().map(|gid| hex(*gid)).collect();
    let mut members = vec![Vec::new(); gids.len()];
    for line in table.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b'@') else { continue };
        let name = line[at + 1..].strip_prefix(PREFIX.as_bytes()).and_then(|name| std::str::from_utf8(name).ok());
        let mut parts = name.unwrap_or("").split('-');
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        // Not of a real program, nor of another test's process.
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
    fn a_table_with_anything_in_it_is_read() {
        let hex = hex(gid(1));
        let mut table = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
        let names = [
            format!("@{PREFIX}12-{hex}-3"),
            format!("@{PREFIX}12-{hex}-4"),
            format!("@{PREFIX}0-{hex}-4"),
            format!("@{PREFIX}4095-{hex}-4"),
            format!("@{PREFIX}99999999-{hex}-4"),
            format!("@{PREFIX}-{hex}"),
            format!("@{PREFIX}13"),
            format!("/tmp/{PREFIX}14-{hex}-3"),
            format!("@{PREFIX}15-{hex}"),
            format!("@{PREFIX}16-{}-3", hex.to_uppercase()),
        ];
        for name in names {
            table.extend_from_slice(format!("0000: 00000002 00000000 00000000 0005 01 1234 {name}\n").as_bytes());
        }
        table.extend_from_slice(b"0000: 2 0 0 5 1 9 @rdma-soft-group-\xff\xfe-\n\n@\n");
        assert_eq!(find(&table, &[gid(1)]), [vec![Slot(12), Slot(15)]]);
        for count in 0..MAX_MEMBERS + 10 {
            table.extend_from_slice(format!("x @{PREFIX}{}-{hex}-1\n", count + 100).as_bytes());
        }
        assert_eq!(find(&table, &[gid(1)])[0].len(), MAX_MEMBERS);
    }
}
