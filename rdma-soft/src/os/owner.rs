//! The process that listens at an address, as far as the kernel tells: for messages alone.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::unistd::geteuid;

/// A socket that keeps others from listening at an address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The user who made the socket.
    uid: Option<u32>,
    /// The id and the name of a process that has the socket, if this process may see it.
    process: Option<(i32, String)>,
}

/// The owner of the socket that listens at an address, or at all addresses with its port.
pub(crate) fn of_listener(address: SocketAddr) -> Owner {
    let mut owners = ["tcp", "tcp6"].into_iter().filter_map(|table| {
        let table = fs::read_to_string(format!("/proc/self/net/{table}")).ok()?;
        table.lines().skip(1).find_map(|line| listener(line, address))
    });
    let Some((uid, inode)) = owners.next() else { return Owner::default() };
    Owner { uid: Some(uid), process: process_with(&format!("socket:[{inode}]")) }
}

/// The user and the inode of the socket in a line of /proc/net/tcp, if it keeps others from an
/// address.
fn listener(line: &str, wanted: SocketAddr) -> Option<(u32, u64)> {
    /// TCP_LISTEN.
    const LISTENS: &str = "0A";
    let mut words = line.split_ascii_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    let address = parse(address)?;
    let is_there = address == wanted.ip() || address.is_unspecified();
    if !is_there || u16::from_str_radix(port, 16) != Ok(wanted.port()) || words.nth(1)? != LISTENS {
        return None;
    }
    Some((words.nth(3)?.parse().ok()?, words.nth(1)?.parse().ok()?))
}

/// An address of /proc/net/tcp: hexadecimal words, whose bytes are in the network's order.
fn parse(text: &str) -> Option<IpAddr> {
    let word = |at: usize| text.get(8 * at..8 * at + 8).and_then(|word| u32::from_str_radix(word, 16).ok());
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into());
    }
    let mut bytes = [0; 16];
    for (at, bytes) in bytes.chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&word(at)?.to_ne_bytes());
    }
    Some(Ipv6Addr::from(bytes).into())
}

/// A process that has a descriptor of what a link in /proc names.
fn process_with(name: &str) -> Option<(i32, String)> {
    let entries = |path: String| fs::read_dir(path).into_iter().flatten().flatten();
    let pids = entries("/proc".to_owned()).filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_it = |pid: &i32| {
        entries(format!("/proc/{pid}/fd")).any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == name))
    };
    let pid = pids.into_iter().find(has_it)?;
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, command.trim_end().to_owned()))
}

/// `process 12 (nginx) of user 33`, or less if the kernel tells less.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(uid) = self.uid else { return f.write_str("another process") };
        match &self.process {
            Some((pid, command)) => write!(f, "process {pid} ({command})")?,
            None => f.write_str("a process")?,
        }
        if uid == geteuid().as_raw() { f.write_str(" of this user") } else { write!(f, " of user {uid}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_process_that_listens_at_an_address_or_at_all_of_them_is_found() {
        // An address of this test alone: another test's socket may have the port elsewhere.
        let one = TcpListener::bind("127.88.7.1:0").unwrap();
        let address = one.local_addr().unwrap();
        let owner = of_listener(address);
        assert_eq!(owner.uid, Some(geteuid().as_raw()));
        // A child that another test forks may have the descriptor, too.
        let text = owner.to_string();
        assert!(text.starts_with("process ") && text.ends_with(" of this user"), "{text}");
        let connection = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(of_listener(connection.local_addr().unwrap()), Owner::default(), "it does not listen");
    }

    #[test]
    fn the_lines_of_the_kernel_are_read() {
        let v4 = "   3: 0100007F:12B7 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 90113 1 0";
        let little = |line: &str, address: &str| {
            if cfg!(target_endian = "little") { listener(line, address.parse().unwrap()) } else { None }
        };
        let expected = cfg!(target_endian = "little").then_some((1000, 90113));
        assert_eq!(little(v4, "127.0.0.1:4791"), expected);
        for other in ["127.0.0.2:4791", "127.0.0.1:4792", "[::1]:4791"] {
            assert_eq!(little(v4, other), None, "{other}");
        }
        assert_eq!(little(&v4.replace("0100007F", "00000000"), "10.0.0.7:4791"), expected);
        assert_eq!(little(&v4.replace(" 0A ", " 01 "), "127.0.0.1:4791"), None);
        let v6 = v4.replace("0100007F", "000080FE000000000000000001000000");
        assert_eq!(little(&v6, "[fe80::1]:4791"), expected);
        for bytes in ["", "x", "   3: 0100007F", "   3: :12B7 0 0A", &v4[..60]] {
            assert_eq!(little(bytes, "127.0.0.1:4791"), None);
        }
        let foreign = Owner { uid: Some(u32::MAX), process: Some((12, "nginx".to_owned())) };
        assert_eq!(foreign.to_string(), "process 12 (nginx) of user 4294967295");
        assert_eq!(Owner::default().to_string(), "another process");
    }
}
