//! The names under which processes listen for connections of the connection manager: abstract Unix
//! sockets with port space, port and address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Prefix of every name. The digit is the protocol's version: processes of different versions do
/// not see each other.
const PREFIX: &str = "rdma-soft-cm1/";

/// The port spaces; each has its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Tcp,
    Udp,
    Ib,
    IpoIb,
}

impl Space {
    const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Ib, Self::IpoIb];

    /// The space in a message, and the other way round.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Tcp => 1,
            Self::Udp => 2,
            Self::Ib => 3,
            Self::IpoIb => 4,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| space.code() == code)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ib => "ib",
            Self::IpoIb => "ipoib",
        }
    }
}

/// The beginning of the names of a port.
pub(crate) fn start(space: Space, port: u16) -> String {
    format!("{PREFIX}{}/{port}/", space.name())
}

/// The address part of a name, without the port.
pub(crate) fn host(address: SocketAddr, only_family: bool) -> String {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() && !only_family => "*".to_owned(),
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// Parses a name into port space, port and address; no address for a wildcard.
pub(crate) fn parse(name: &str) -> Option<(Space, u16, Option<IpAddr>)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('/');
    let (space, port, host) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let space = Space::ALL.into_iter().find(|known| known.name() == space)?;
    let port = port.parse().ok().filter(|&port| port != 0)?;
    let host = host.split_once('~').map_or(host, |(host, _)| host);
    if host == "*" {
        return Some((space, port, None));
    }
    let host = host.split_once('%').map_or(host, |(host, _)| host);
    let ip: IpAddr = host.parse().ok()?;
    Some((space, port, (!ip.is_unspecified()).then_some(ip)))
}

/// The names under which a process may listen for an address, the most specific first.
pub(crate) fn listeners(space: Space, address: &SocketAddr) -> [String; 3] {
    let start = start(space, address.port());
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    [host(*address, true), any.to_string(), "*".to_owned()].map(|host| format!("{start}{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let known = |name: &str| parse(&format!("{PREFIX}{name}"));
        assert_eq!(known("tcp/7471/127.0.0.1"), Some((Space::Tcp, 7471, Some([127, 0, 0, 1].into()))));
        assert_eq!(known("udp/1/0.0.0.0"), Some((Space::Udp, 1, None)));
        assert_eq!(known("udp/1/*~a0"), Some((Space::Udp, 1, None)));
        assert_eq!(known("ib/9/fe80::1%3~77"), Some((Space::Ib, 9, Some("fe80::1".parse().unwrap()))));
        for bad in
            ["", "tcp", "tcp/0/127.0.0.1", "tcp/70000/127.0.0.1", "tcp/1/x", "sctp/1/127.0.0.1", "tcp/1/1.1.1.1/2"]
        {
            assert_eq!(known(bad), None, "{bad}");
        }
        assert_eq!(parse("tcp/7471/127.0.0.1"), None);
    }
}
