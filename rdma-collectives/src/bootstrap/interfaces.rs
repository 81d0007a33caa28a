//! The addresses of this host's network interfaces.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockaddrStorage, getsockopt, sockopt};
use nix::unistd::geteuid;
use socket2::Socket;

/// The addresses of this host that others can reach and that need no scope, IPv4 addresses first.
pub(crate) fn of_host() -> Vec<IpAddr> {
    let mut all = addresses(|_| true);
    all.retain(|ip| !ip.is_loopback());
    all
}

/// The addresses of one interface that need no scope, IPv4 addresses first.
pub(crate) fn of_interface(name: &str) -> Vec<IpAddr> {
    addresses(|interface| interface == name)
}

/// This host's address at the connections to other ranks: one that other hosts can reach, if there
/// is one among them. `None` if all are Unix sockets.
pub(super) fn towards<'a>(streams: impl Iterator<Item = &'a Socket>) -> Option<IpAddr> {
    let local = |stream: &Socket| Some(stream.local_addr().ok()?.as_socket()?.ip().to_canonical());
    streams.filter_map(local).min_by_key(IpAddr::is_loopback)
}

/// Whether a connection is a Unix socket whose other side has been opened by this process's user.
pub(super) fn is_private(stream: &Socket) -> bool {
    let is_unix = stream.local_addr().is_ok_and(|address| address.is_unix());
    is_unix && getsockopt(stream, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

fn addresses(is_wanted: impl Fn(&str) -> bool) -> Vec<IpAddr> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let ip = |address: SockaddrStorage| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())).filter(|_| !v6.ip().is_unicast_link_local()),
        _ => None,
    };
    let wanted = all.filter(|interface| is_wanted(&interface.interface_name));
    let mut found: Vec<IpAddr> = wanted.filter_map(|interface| interface.address.and_then(ip)).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_taken_by_its_name_alone() {
        assert!(of_interface("lo").contains(&Ipv4Addr::LOCALHOST.into()));
        assert!(of_host().iter().all(|ip| !ip.is_loopback()));
        assert_eq!(of_interface("none such"), [] as [IpAddr; 0]);
    }
}
