//! An address of this host that the connection manager finds the device by.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::{Context, Rc};

use crate::Failure;
use crate::device::Chosen;

/// The address asked for; else that of the port's GID, if it has one; else any of this host's interfaces that leads there.
pub(super) fn find(chosen: &Chosen, asked: Option<IpAddr>) -> Result<IpAddr, Failure> {
    let context = &chosen.context;
    if let Some(ip) = asked {
        return try_to_listen(context, ip)
            .map(|()| ip)
            .map_err(|failure| failure.context(format_args!("--cm-address {ip}")));
    }
    if context.is_software() {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let of_gid = chosen.gid.filter(|entry| !entry.gid.is_link_local()).map(|entry| entry.gid);
    let of_gid = of_gid.map(|gid| gid.ipv4().map_or(IpAddr::V6(gid.ipv6()), IpAddr::V4));
    let mut all: Vec<IpAddr> = of_gid.into_iter().chain(of_interfaces()).collect();
    // The order of interfaces, the old version of IP first.
    all[usize::from(of_gid.is_some())..].sort_by_key(IpAddr::is_ipv6);
    let mut last = None;
    for ip in all {
        match try_to_listen(context, ip) {
            Ok(()) => return Ok(ip),
            Err(failure) => last = Some(failure.context(ip)),
        }
    }
    let why = last.map_or_else(|| "there is none but loopback's".to_owned(), |failure| failure.to_string());
    Err(Failure::new(format!(
        "no address of this host leads to {} by the connection manager ({why}); give its interface one, or say which with --cm-address",
        context.name()
    )))
}

/// All addresses that others can reach, and that need no scope.
fn of_interfaces() -> Vec<IpAddr> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let ip = |address: nix::sys::socket::SockaddrStorage| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())).filter(|_| !v6.ip().is_unicast_link_local()),
        _ => None,
    };
    all.filter_map(|interface| interface.address.and_then(ip)).filter(|ip| !ip.is_loopback()).collect()
}

fn try_to_listen(context: &Context, ip: IpAddr) -> Result<(), Failure> {
    Listener::<Rc>::bind(context, SocketAddr::new(ip, 0), &ListenOptions::new()).map(drop).map_err(Failure::from)
}
