//! Addresses for the connection manager: what names on the command line mean, and which address of this host leads to the chosen
//! device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::{Context, Rc};

use crate::Failure;
use crate::bootstrap::Group;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn has(self, address: &IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// The address that a host's name, or an address as text, stands for. IPv6 addresses may come in brackets.
///
/// # Errors
/// Where there is none.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    if host.is_empty() {
        return Err(Failure::usage("an empty text is not an address; give one, or the name of a host"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // Elsewhere addresses have ports, and IPv6 addresses have colons.
    let port_of =
        |(name, port): (&str, &str)| (!name.contains(':') || name.ends_with(']')).then(|| port.parse().ok())?;
    let given: Option<u16> = host.rsplit_once(':').filter(|_| bare.parse::<IpAddr>().is_err()).and_then(port_of);
    if let Some(given) = given {
        return Err(Failure::usage(format!(
            "{host} is an address with a port; give the port by itself: --port {given}"
        )));
    }
    let unknown = |why: String| Failure::new(format!("{host} is not an address or the name of a host{why}"));
    let mut found = (bare, port).to_socket_addrs().map_err(|error| unknown(format!(": {error}")))?;
    found.next().ok_or_else(|| unknown(String::new()))
}

/// The own address to connect to `server` from.
///
/// # Errors
/// Where there is none, or it is of the other version of IP.
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

/// An address of this host at which the connection manager finds the device, of that family if one is given.
///
/// # Errors
/// Where the device has none.
pub fn of_device(context: &Context, family: Option<Family>) -> Result<IpAddr, Failure> {
    let mut addresses = of_host();
    // The software device is at all of them, and loopback is the one that does not change; no hardware is there.
    addresses.retain(|address| context.is_software() || !address.is_loopback());
    addresses.sort_by_key(|address| (!address.is_loopback(), address.is_ipv6()));
    let mut last = None;
    for address in addresses.into_iter().filter(|address| family.is_none_or(|family| family.has(address))) {
        match Listener::<Rc>::bind(context, SocketAddr::new(address, 0), &ListenOptions::new()) {
            Ok(_) => return Ok(address),
            Err(error) => last = Some(error),
        }
    }
    let name = context.name();
    let why = last.map_or_else(String::new, |error| format!(" ({error})"));
    Err(Failure::new(format!("no address of this host leads to {name}{why}; give one to its network interface")))
}

/// Tells the other processes of a pair where rank 0, which gives it, listens. Every process has to call it.
///
/// # Errors
/// Where another process has failed, or rank 0 gave nothing.
pub fn tell(group: &mut Group, own: Option<SocketAddr>) -> Result<SocketAddr, Failure> {
    let own = own.map_or_else(String::new, |address| address.to_string());
    let told = group.all_gather(own.as_bytes())?.swap_remove(0);
    String::from_utf8_lossy(&told).parse().map_err(|_| Failure::new("the server has no address"))
}

/// The addresses of this host, but for link-local ones, which mean nothing without an interface.
fn of_host() -> Vec<IpAddr> {
    // Where /proc is not there, loopback is.
    let v4 = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut all = ipv4(&v4);
    all.extend(ipv6(&v6));
    if !all.contains(&Ipv4Addr::LOCALHOST.into()) {
        all.push(Ipv4Addr::LOCALHOST.into());
    }
    all
}

/// The local addresses in the kernel's routing tables: a leaf's address, and in the next lines what it is.
fn ipv4(fib_trie: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut leaf = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok().map(IpAddr::V4);
        } else if line == "/32 host LOCAL" {
            found.extend(leaf.filter(|address| !found.contains(address)));
        }
    }
    found
}

/// The addresses in the kernel's list: 32 digits, index, length of the prefix, scope, flags, name.
fn ipv6(if_inet6: &str) -> Vec<IpAddr> {
    let digits = if_inet6.lines().filter_map(|line| line.split_whitespace().next());
    let addresses = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok()).map(Ipv6Addr::from);
    addresses.filter(|address| !address.is_unicast_link_local()).map(IpAddr::V6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.9.0.0\n\
                    \x20       /24 link UNICAST\n     |-- 10.9.0.1\n        /32 host LOCAL\n     |-- 10.9.0.255\n\
                    \x20       /32 link BROADCAST\nLocal:\n     |-- 10.9.0.1\n        /32 host LOCAL\n";
        assert_eq!(ipv4(trie), ["10.9.0.1".parse::<IpAddr>().unwrap()]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
                    fd000000000000000000000000000002 04 40 00 82     eth0\n";
        assert_eq!(ipv6(list), ["::1".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        assert!(ipv4("nonsense").is_empty() && ipv6("nonsense\n\n").is_empty());
        assert!(of_host().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn addresses_and_names_resolve() {
        assert_eq!(resolve("10.9.0.1", 5).unwrap(), "10.9.0.1:5".parse().unwrap());
        assert_eq!(resolve("::1", 5).unwrap(), "[::1]:5".parse().unwrap());
        assert_eq!(resolve("[::1]", 5).unwrap(), "[::1]:5".parse().unwrap());
        for with_port in ["10.9.0.1:80", "[::1]:80", "node1:80"] {
            let complaint = resolve(with_port, 5).unwrap_err().to_string();
            assert!(complaint.ends_with("--port 80"), "{complaint}");
        }
        assert!(resolve("", 5).is_err());
        assert!(resolve("no such host", 5).unwrap_err().to_string().contains("no such host"));
    }
}
