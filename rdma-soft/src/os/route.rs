//! The routing table: the address from which packets to a destination leave.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::socket::kernel_socket;

/// Makes a UDP socket of an address's family.
pub(crate) fn udp_socket(like: &SocketAddr) -> io::Result<UdpSocket> {
    let family = if like.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    Ok(kernel_socket(family, libc::SOCK_DGRAM)?.into())
}

/// The local address from which packets to a destination leave, with port 0.
///
/// # Errors
///
/// `ENETUNREACH` or `EHOSTUNREACH` if there is no route, and what a new socket fails with.
pub(crate) fn source(destination: &SocketAddr) -> io::Result<SocketAddr> {
    let socket = udp_socket(destination)?;
    let mut probe = *destination;
    // Connecting a UDP socket sends nothing, so the port is arbitrary.
    probe.set_port(9);
    socket.connect(probe)?;
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok(source)
}
