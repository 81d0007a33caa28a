//! The socket on which rank 0 waits for the others, and its addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, SockAddr, Socket, Type};

use super::interfaces;
use crate::Error;
use crate::text::PeerText;

/// Most addresses of rank 0.
pub(super) const MOST_ADDRESSES: usize = 64;
/// Connections that may wait for their acceptance, as far as the host permits.
const BACKLOG: i32 = 4096;

/// The place on its host where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// An address, or every address of the host; port 0 is one of the kernel's choice.
    At(SocketAddr),
    /// The first address of a network interface.
    On(String),
}

impl Listen {
    /// All addresses of the host, at this port.
    pub(super) fn everywhere(port: u16) -> Self {
        Self::At(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
    }

    /// Opens the socket, at `port` if this is a place without a port.
    pub(super) fn open(&self, port: u16) -> Result<Socket, Error> {
        let mut address = match self {
            Self::At(address) => *address,
            Self::On(interface) => {
                let ip = interfaces::of_interface(interface).first().copied().ok_or_else(|| {
                    let name = PeerText::from(interface.as_str());
                    Error::invalid(format!(
                        "this host has no interface {name} with an address; `ip address` lists them"
                    ))
                })?;
                SocketAddr::new(ip, 0)
            }
        };
        if address.port() == 0 {
            address.set_port(port);
        }
        match address.ip() {
            IpAddr::V6(ip) if ip.is_unspecified() => listen_everywhere(address.port()),
            _ => listen(&address.to_string()),
        }
    }
}

/// The addresses at which other ranks may reach a listening socket, the likeliest first: its own;
/// or those of this host if it listens on all, and loopback for ranks on a host without a network.
pub(super) fn addresses(listener: &Socket) -> Result<Vec<SocketAddr>, Error> {
    let bound = listener.local_addr()?.as_socket();
    let bound = bound.ok_or_else(|| Error::invalid("other hosts cannot reach a socket without an IP address"))?;
    if !bound.ip().is_unspecified() {
        return Ok(vec![bound]);
    }
    let mut ips = interfaces::of_host();
    ips.retain(|ip| ip.is_ipv4() || bound.is_ipv6());
    ips.truncate(MOST_ADDRESSES - 1);
    ips.push(Ipv4Addr::LOCALHOST.into());
    Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, bound.port())).collect())
}

/// Opens the socket on which rank 0 waits for the others.
///
/// # Errors
/// If the address cannot be bound; the message says whether another program uses it.
pub fn listen(address: &str) -> Result<Socket, Error> {
    TcpListener::bind(address).map(Socket::from).map_err(|error| cannot_listen(address, &error))
}

/// Opens a socket as [`listen`] does, on all addresses of this host: on IPv6 and IPv4 if it has
/// both.
///
/// # Errors
/// If the port cannot be bound; the message says whether another program uses it.
pub fn listen_everywhere(port: u16) -> Result<Socket, Error> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let both = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        // Whatever the host's default is.
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    both().or_else(|_: io::Error| listen(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port).to_string()))
}

fn cannot_listen(address: &str, error: &io::Error) -> Error {
    Error::new(match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("the port of {address} is in use; end the program that has it, or give another port")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is not an address of this host; rank 0 has to listen on one that is")
        }
        _ => format!("cannot listen on {address}: {error}"),
    })
}

/// Opens a socket for the ranks of this host, which needs no network; returns the socket and its
/// address.
///
/// # Errors
/// Errors of the socket calls.
pub fn listen_locally(job: u64) -> Result<(Socket, String), Error> {
    let name = format!("@rdma-job-{job:016x}");
    let failed = |call, error| Error::new(format!("cannot listen on {name} on this host: {call}: {error}"));
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(|error| failed("socket", error))?;
    socket.bind(&local_address(&name)?).map_err(|error| failed("bind", error))?;
    socket.listen(128).map_err(|error| failed("listen", error))?;
    Ok((socket, name))
}

/// The address of the abstract Unix socket that `@name` stands for.
pub(super) fn local_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(name.replacen('@', "\0", 1))
}

/// Checks that an address has a host and a port.
///
/// # Errors
/// If one of the two is missing or invalid.
pub fn check_address(address: &str) -> Result<(), Error> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if port != 0 => Ok(()),
        Some(_) if address.ends_with(|last: char| last.is_ascii_digit()) => {
            Err(Error::invalid(format!("{address} has no port from 1 to 65535; give host:port, such as node1:18515")))
        }
        _ => Err(Error::invalid(format!("{address} is not an address; give host:port, such as node1:18515"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_host_and_port() {
        for good in ["node1:18515", "127.0.0.1:1", "[::1]:80"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in ["", "node1", ":80", "node1:", "node1:0", "node1:70000", "node1:x"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_socket_of_all_addresses_has_those_of_the_host() {
        let socket = listen_everywhere(0).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let all = addresses(&socket).unwrap();
        assert!(all.iter().all(|address| address.port() == port && !address.ip().is_unspecified()), "{all:?}");
        let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        assert_eq!(all.last(), Some(&loopback));
        std::net::TcpStream::connect(loopback).unwrap();
    }

    #[test]
    fn a_place_may_be_an_address_or_an_interface() {
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        for place in [Listen::At(here), Listen::On("lo".into())] {
            let all = addresses(&place.open(0).unwrap()).unwrap();
            assert!(all.len() == 1 && all[0].ip() == here.ip() && all[0].port() != 0, "{all:?}");
        }
        let error = Listen::On("no\nne".into()).open(0).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with("this host has no interface no\\nne with"), "{error}");
        // An address of documentation, which no host has.
        let error = Listen::At("192.0.2.1:0".parse().unwrap()).open(0).unwrap_err().to_string();
        assert!(error.contains("is not an address of this host"), "{error}");
    }
}
