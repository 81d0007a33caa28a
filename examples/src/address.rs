//! Addresses for the connection manager: resolves names from the command line.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

pub use rdma_collectives::address::of_device;
use rdma_collectives::bootstrap::Group;

use crate::Failure;

/// Resolves a host name or an address in text form; the port is the one behind it, as in
/// `node1:80` or `[::1]:80`, or else `port`. An IPv6 address may stand in brackets.
///
/// # Errors
/// If the text resolves to no address.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    if host.is_empty() {
        return Err(Failure::usage("an empty text is not an address; give one, or the name of a host"));
    }
    // The colons of an IPv6 address set off no port.
    let is_address = without_brackets(host).parse::<IpAddr>().is_ok();
    let given = host.rsplit_once(':').filter(|_| !is_address).and_then(|(name, port)| {
        let sets_off = !name.contains(':') || name.ends_with(']');
        Some((name, port.parse().ok().filter(|_| sets_off)?))
    });
    let (name, port) = given.unwrap_or((host, port));
    let bare = without_brackets(name);
    let unknown = |why: String| Failure::new(format!("{host} is not an address or the name of a host{why}"));
    let mut found = (bare, port).to_socket_addrs().map_err(|error| unknown(format!(": {error}")))?;
    found.next().ok_or_else(|| unknown(String::new()))
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Resolves the local address to connect to `server` from.
///
/// # Errors
/// If there is none, or if its IP version differs from the server's.
pub fn resolve_source(host: &str, server: &SocketAddr) -> Result<SocketAddr, Failure> {
    let source = resolve(host, 0)?;
    if source.is_ipv4() == server.is_ipv4() {
        return Ok(source);
    }
    let (from, to) = (source.ip(), server.ip());
    Err(Failure::usage(format!(
        "from {from} to {to}: IPv4 and IPv6 do not connect; give an own address like the server's"
    )))
}

/// Tells the other processes of a pair the address on which rank 0 listens. Rank 0 passes the
/// address as `own`; every process has to call this function.
///
/// # Errors
/// If another process has failed, or rank 0 passed `None`.
pub fn tell(group: &mut Group, own: Option<SocketAddr>) -> Result<SocketAddr, Failure> {
    let told = group.all_gather("the server's address", &own)?.swap_remove(0);
    told.ok_or_else(|| Failure::new("the server has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_resolve() {
        assert_eq!(resolve("10.9.0.1", 5).unwrap(), "10.9.0.1:5".parse().unwrap());
        assert_eq!(resolve("::1", 5).unwrap(), "[::1]:5".parse().unwrap());
        assert_eq!(resolve("[::1]", 5).unwrap(), "[::1]:5".parse().unwrap());
        for with_port in ["10.9.0.1:80", "[::1]:80"] {
            assert_eq!(resolve(with_port, 5).unwrap(), with_port.parse().unwrap());
        }
        assert_eq!(resolve("localhost:80", 5).unwrap().port(), 80);
        assert!(resolve("10.9.0.1:x", 5).unwrap_err().to_string().contains("10.9.0.1:x is not an address"));
        assert!(resolve("", 5).is_err());
        assert!(resolve("no such host", 5).unwrap_err().to_string().contains("no such host"));
    }
}
