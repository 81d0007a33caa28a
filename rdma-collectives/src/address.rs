//! The address of this host that leads to a device by the connection manager.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::errno::Errno;
use rdma::Context;
use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::transport::Rc;

use crate::Error;
use crate::adapter::Adapter;
use crate::bootstrap::interfaces;

/// An address of this host that the connection manager maps to the device: that at which it listens
/// for other hosts; a loopback address of a software device; else the address in the port's GID, if
/// there is one; else the first interface address that leads to the device.
///
/// # Errors
/// If this host has no such address.
pub fn of_device(adapter: &Adapter) -> Result<IpAddr, Error> {
    // A software device has a loopback address of its own, which never changes; the one that
    // listens for other hosts is reached by them at that address alone.
    let own = (1..=64).map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    let own = listened_at(&adapter.context).into_iter().chain(own).filter(|_| adapter.context.is_software());
    let of_gid = adapter.gid.filter(|entry| !entry.gid.is_link_local()).map(|entry| entry.gid);
    let of_gid = of_gid.map(|gid| gid.ipv4().map_or(IpAddr::V6(gid.ipv6()), IpAddr::V4));
    let mut last = None;
    for ip in own.chain(of_gid).chain(interfaces::of_host()) {
        match bind(&adapter.context, ip) {
            Ok(()) => return Ok(ip),
            Err(error) if is_shortage(error) => return Err(error.into()),
            Err(error) => last = Some(Error::from(error).context(ip)),
        }
    }
    let why = last.map_or_else(|| "there is none but loopback's".to_owned(), |failure| failure.to_string());
    Err(Error::new(format!(
        "no address of this host leads to {} by the connection manager ({why}); give its network interface one",
        adapter.context.name()
    )))
}

/// The address at which a device listens for other hosts, if it does.
#[cfg(feature = "soft")]
fn listened_at(context: &Context) -> Option<IpAddr> {
    let status = rdma::soft::tcp::status()?;
    (status.device == context.name()).then(|| status.address.ip())
}

/// Without the software device, none does.
#[cfg(not(feature = "soft"))]
fn listened_at(_context: &Context) -> Option<IpAddr> {
    None
}

/// Checks that the connection manager maps an address of this host to the device.
///
/// # Errors
/// The reason why it does not.
pub fn leads_to(context: &Context, ip: IpAddr) -> rdma::Result<()> {
    bind(context, ip)
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
