//! Addresses for the connection manager: resolves names from the command line, and finds the
//! address of this host that leads to the chosen device.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rdma::Context;
use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::transport::Rc;

use crate::Failure;
use crate::bootstrap::Group;
use crate::device::Chosen;

/// Resolves a host name or an address in text form. An IPv6 address may stand in brackets.
///
/// # Errors
/// If the text resolves to no address.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    if host.is_empty() {
        return Err(Failure::usage("an empty text is not an address; give one, or the name of a host"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // Detects `host:port`, which other programs take, to reject it with advice; the colons of an
    // IPv6 address set off no port.
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

/// An address of this host that the connection manager maps to the device: a loopback address of a
/// software device; else the address in the port's GID, if there is one; else the first interface
/// address that leads to the device.
///
/// # Errors
/// If this host has no such address.
pub fn of_device(chosen: &Chosen) -> Result<IpAddr, Failure> {
    // A software device has a loopback address of its own, which never changes.
    let own = (1..=64).map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    let own = own.filter(|_| chosen.context.is_software());
    let of_gid = chosen.gid.filter(|entry| !entry.gid.is_link_local()).map(|entry| entry.gid);
    let of_gid = of_gid.map(|gid| gid.ipv4().map_or(IpAddr::V6(gid.ipv6()), IpAddr::V4));
    let mut last = None;
    for ip in own.chain(of_gid).chain(of_host()) {
        match bind(&chosen.context, ip) {
            Ok(()) => return Ok(ip),
            Err(error) if is_shortage(error) => return Err(error.into()),
            Err(error) => last = Some(Failure::from(error).context(ip)),
        }
    }
    let why = last.map_or_else(|| "there is none but loopback's".to_owned(), |failure| failure.to_string());
    Err(Failure::new(format!(
        "no address of this host leads to {} by the connection manager ({why}); give its network interface one",
        chosen.context.name()
    )))
}

/// Checks that the connection manager maps an address of this host to the device.
///
/// # Errors
/// The reason why it does not.
pub fn leads_to(context: &Context, ip: IpAddr) -> Result<(), Failure> {
    bind(context, ip).map_err(Failure::from)
}

fn bind(context: &Context, ip: IpAddr) -> rdma::Result<()> {
    Listener::<Rc>::bind(context, SocketAddr::new(ip, 0), &ListenOptions::new()).map(drop)
}

/// Whether an error says that this process lacks something, whatever the address is.
fn is_shortage(error: rdma::Error) -> bool {
    let has_none = |errno| matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN);
    match error.kind() {
        rdma::ErrorKind::OutOfMemory | rdma::ErrorKind::RefusedCall(_) => true,
        rdma::ErrorKind::Os => error.errno().map(Errno::from_raw).is_some_and(has_none),
        _ => false,
    }
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

/// The addresses of this host's interfaces that other hosts can reach and that need no scope, IPv4
/// addresses first.
fn of_host() -> Vec<IpAddr> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let ip = |address: SockaddrStorage| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())).filter(|_| !v6.ip().is_unicast_link_local()),
        _ => None,
    };
    let mut all: Vec<IpAddr> = all.filter_map(|interface| interface.address.and_then(ip)).collect();
    all.retain(|ip| !ip.is_loopback());
    all.sort_by_key(IpAddr::is_ipv6);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

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
