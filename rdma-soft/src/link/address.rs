//! The address at which this process listens for other hosts, as a user names it: an address, a
//! network interface, or the interface of a route.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::os::route;

/// The port of an address without one: that of RoCE, which firewalls know. RoCE is UDP.
const PORT: u16 = 4791;
/// Bytes of the longest name of an interface.
const MAX_NAME: usize = 15;
/// Destinations of the default route: addresses that no network has (RFC 5737 and RFC 3849).
const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The values of `RDMA_SOFT_TCP`, in words.
pub(crate) const VALUES: &str =
    "an IP address of this host, a network interface, or auto; each with a port (4791 by default) or without";

/// The reason why `soft0` does not reach other hosts, and what to do.
///
/// It becomes an [`io::Error`](std::io::Error) with the same text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    errno: i32,
}

impl Error {
    pub(crate) fn new(errno: Errno, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), errno: errno as i32 }
    }

    /// The error number with which the first open of a device would fail, such as `EADDRINUSE`.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}

/// The address at which `soft0` listens for other hosts, in one of the forms of `RDMA_SOFT_TCP`.
///
/// | Form | Address |
/// | --- | --- |
/// | `10.0.0.2`, `fd00::2` | this address of the host |
/// | `eth0` | the first IPv4 address of the interface that other hosts can use, else its first IPv6 address |
/// | `auto` | the source address of the default route; without one, the address of the first interface that has one |
/// | [`towards`](Self::towards) | the source address of the route to another host |
///
/// Each may have a port: `10.0.0.2:4791`, `[fd00::2]:4791`, `eth0:4791`, `auto:4791`. Without one
/// the port is 4791. All hosts of a job use one port.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp::Address;
///
/// let address: Address = "127.0.0.2".parse()?;
/// assert_eq!(address.resolve()?, "127.0.0.2:4791".parse()?);
/// assert!("0.0.0.0".parse::<Address>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    place: Place,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Exact(IpAddr),
    Interface(String),
    /// The source address of the default route.
    Auto,
    /// The source address of the route to another host.
    Towards(IpAddr),
}

impl Address {
    /// The source address of the route to a host, such as the root of a job, with port 4791. The
    /// port of `destination` does not matter.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_soft::tcp::Address;
    ///
    /// let address = Address::towards("127.0.0.1:7000".parse()?);
    /// assert_eq!(address.resolve()?, "127.0.0.1:4791".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn towards(destination: SocketAddr) -> Self {
        Self { place: Place::Towards(destination.ip().to_canonical()), port: PORT }
    }

    /// Whether this is `auto`, for which a program that knows another host of the job takes
    /// [`towards`](Self::towards).
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.place == Place::Auto
    }

    /// The same address with another port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The IP address and the port that this names now. The addresses of interfaces change, for
    /// example when a network comes up.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no address of a host, or port 0. `ENODEV`: there is no such interface.
    /// `EADDRNOTAVAIL`: the interface is down or has no address that other hosts can use; or no
    /// interface has. `ENETUNREACH` and others: there is no route. That this host has an address
    /// is not checked.
    pub fn resolve(&self) -> Result<SocketAddr, Error> {
        let ip = match &self.place {
            Place::Exact(ip) => *ip,
            Place::Interface(name) => of_interface(name)?,
            Place::Auto => default()?,
            Place::Towards(destination) => source(*destination).map_err(|error| {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
                Error::new(errno, format_args!("there is no route to {destination}: {error}"))
            })?,
        };
        let address = SocketAddr::new(ip, self.port);
        if ip.is_unspecified() || ip.is_multicast() || self.port == 0 {
            return Err(Error::new(Errno::EINVAL, format_args!("{address} is not {VALUES}")));
        }
        Ok(address)
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Reads a value of `RDMA_SOFT_TCP`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it has none of the forms, or names no address of a host. Whether there is such an
    /// interface is not checked.
    fn from_str(value: &str) -> Result<Self, Error> {
        let refused = || Error::new(Errno::EINVAL, format_args!("{value:?} is not {VALUES}"));
        let exact: Result<SocketAddr, _> = value.parse().or_else(|_| value.parse().map(|ip| SocketAddr::new(ip, PORT)));
        if let Ok(address) = exact {
            let address = Self::from(address);
            return address.resolve().map(|_| address).map_err(|_| refused());
        }
        let (name, port) = match value.split_once(':') {
            Some((name, port)) => (name, port.parse().ok().filter(|port| *port != 0).ok_or_else(refused)?),
            None => (value, PORT),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        // A mistyped address is not taken for a name.
        let has_letter = name.bytes().any(|byte| byte.is_ascii_alphabetic());
        if name.len() > MAX_NAME || !name.bytes().all(is_name) || !has_letter {
            return Err(refused());
        }
        let place = if name.eq_ignore_ascii_case("auto") { Place::Auto } else { Place::Interface(name.to_owned()) };
        Ok(Self { place, port })
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { place: Place::Exact(address.ip().to_canonical()), port: address.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Exact(ip) => return SocketAddr::new(*ip, self.port).fmt(f),
            Place::Interface(name) => f.write_str(name)?,
            Place::Auto => f.write_str("auto")?,
            Place::Towards(destination) => write!(f, "the route to {destination}")?,
        }
        if self.port == PORT { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// The source address of the route to a host.
fn source(destination: IpAddr) -> std::io::Result<IpAddr> {
    route::source(&SocketAddr::new(destination, 0)).map(|source| source.ip().to_canonical())
}

/// The source address of the default route, else the address of the first interface that has one.
fn default() -> Result<IpAddr, Error> {
    if let Some(address) = FAR.into_iter().find_map(|far| source(far).ok().filter(is_reachable)) {
        return Ok(address);
    }
    let entries = interfaces()?;
    let up = |entry: &&InterfaceAddress| entry.flags.contains(InterfaceFlags::IFF_UP);
    best(entries.iter().filter(up).filter_map(address_of).filter(|address| !address.is_loopback())).ok_or_else(|| {
        let why = "no network interface has an address that other hosts can use, and there is no default route";
        Error::new(Errno::EADDRNOTAVAIL, why)
    })
}

/// The address of an interface.
fn of_interface(name: &str) -> Result<IpAddr, Error> {
    let entries = interfaces()?;
    let has_name = |entry: &&InterfaceAddress| base(entry) == name;
    let Some(first) = entries.iter().find(has_name) else {
        let mut names: Vec<_> = entries.iter().map(base).collect();
        names.sort_unstable();
        names.dedup();
        let text = format!("there is no network interface {name}; this host has {}", names.join(", "));
        return Err(Error::new(Errno::ENODEV, text));
    };
    if !first.flags.contains(InterfaceFlags::IFF_UP) {
        return Err(Error::new(Errno::EADDRNOTAVAIL, format_args!("the network interface {name} is down")));
    }
    best(entries.iter().filter(has_name).filter_map(address_of)).ok_or_else(|| {
        let text = format!("the network interface {name} has no IP address that other hosts can use");
        Error::new(Errno::EADDRNOTAVAIL, text)
    })
}

fn interfaces() -> Result<Vec<InterfaceAddress>, Error> {
    let list = getifaddrs().map_err(|errno| {
        let why = std::io::Error::from(errno);
        Error::new(errno, format_args!("the network interfaces cannot be listed: {why}"))
    })?;
    Ok(list.collect())
}

/// The interface of an entry. An alias such as eth0:1 is an address of the interface eth0.
fn base(entry: &InterfaceAddress) -> &str {
    let label = entry.interface_name.as_str();
    label.split_once(':').map_or(label, |(interface, _)| interface)
}

fn address_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// The first usable IPv4 address, else the first usable IPv6 address.
fn best(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let usable: Vec<_> = addresses.filter(is_reachable).collect();
    usable.iter().find(|address| address.is_ipv4()).or(usable.first()).copied()
}

/// Whether a GID can name the address to another host: one of a link needs an interface with it.
fn is_reachable(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_link_local && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> String {
        value.parse::<Address>().map(|address| address.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_address_has_the_forms_of_the_variable() {
        for (value, expected) in [
            ("10.0.0.2", "10.0.0.2:4791"),
            ("127.0.0.3:7000", "127.0.0.3:7000"),
            ("fd00::2", "[fd00::2]:4791"),
            ("[fd00::2]:7000", "[fd00::2]:7000"),
            ("::ffff:10.0.0.1", "10.0.0.1:4791"),
            ("eth0", "eth0"),
            ("eth0:4791", "eth0"),
            ("br-0a1b2c3d.7:7000", "br-0a1b2c3d.7:7000"),
            ("auto", "auto"),
            ("AUTO:7000", "auto:7000"),
        ] {
            assert_eq!(parsed(value), expected, "{value}");
        }
        let wrong = [
            "",
            " ",
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
            "224.0.0.1",
            "ff02::1",
            "10.0.0.2:0",
            "10.0.0.2:65536",
            "10.0.0.2 ",
            "10.0.0",
            "10.0.0.300",
            "eth0:",
            "eth0:0",
            "eth0:70000",
            "eth0:1:2",
            "an-interface-too-long",
            "eth/0",
            "[fd00::2",
            "eth0 ",
            ":4791",
            "\u{e9}th0",
        ];
        for value in wrong {
            assert_eq!(parsed(value), "", "{value}");
            let error = value.parse::<Address>().unwrap_err();
            assert_eq!(error.raw_os_error(), libc::EINVAL);
            assert!(error.to_string().contains("network interface"), "{error}");
        }
    }

    #[test]
    fn an_interface_has_an_address_that_other_hosts_can_use() {
        let of = |values: &[&str]| best(values.iter().map(|value| value.parse().unwrap())).map(|ip| ip.to_string());
        assert_eq!(of(&["fe80::1", "fd00::2", "169.254.1.1", "10.0.0.2", "10.0.0.3"]).as_deref(), Some("10.0.0.2"));
        assert_eq!(of(&["fe80::1", "fd00::2", "fd00::3"]).as_deref(), Some("fd00::2"));
        assert_eq!(of(&["fe80::1", "169.254.1.1"]), None);
        let loopback = "lo:7000".parse::<Address>().unwrap();
        match loopback.resolve() {
            Ok(address) => assert!(address.ip().is_loopback() && address.port() == 7000, "{address}"),
            Err(error) => assert!(error.to_string().contains("down"), "{error}"),
        }
        let missing = "nosuch0".parse::<Address>().unwrap().resolve().unwrap_err();
        assert_eq!(missing.raw_os_error(), libc::ENODEV);
        assert!(missing.to_string().contains("nosuch0; this host has"), "{missing}");
    }

    #[test]
    fn the_route_chooses_an_address_of_this_host() {
        let towards =
            |to: &str| Address::towards(to.parse().unwrap()).with_port(7000).resolve().map(|at| at.to_string());
        assert_eq!(towards("127.0.0.1:9"), Ok("127.0.0.1:7000".to_owned()));
        match "auto".parse::<Address>().unwrap().resolve() {
            Ok(address) => assert!(is_reachable(&address.ip()) && !address.ip().is_loopback(), "{address}"),
            Err(error) => assert_eq!(error.raw_os_error(), libc::EADDRNOTAVAIL, "{error}"),
        }
        let unresolved = Address::from("0.0.0.0:4791".parse::<SocketAddr>().unwrap()).resolve();
        assert_eq!(unresolved.unwrap_err().raw_os_error(), libc::EINVAL);
    }
}
