//! Ports: which address and port an id has, decided by the kernel through the names of sockets.
//!
//! A name is port space, port and address. An id that is bound has the name's socket; it then
//! listens with it or connects with it, so that the other end learns who it is from the kernel.
//! Addresses that overlap (a wildcard and any other) are different names: whoever takes a name
//! looks whether an overlapping one is taken, and gives its own back if so. An id that lets others
//! use its address too has a name of its own kind, with a random end, until it listens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use rdma_sys::rdma_port_space;

use super::address::with_port;
use crate::engine::Errno;
use crate::os;
use crate::os::socket::{self, Socket};

/// Before every name. The digit is the protocol's version: other versions are other worlds.
const PREFIX: &str = "rdma-soft-cm1/";

/// How often a name is tried that is taken: another process may have it for the moment of
/// [`socket::is_taken`].
const ATTEMPTS: u32 = 3;

/// The spaces that have ports of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Tcp,
    Udp,
    Ib,
    IpoIb,
}

impl Space {
    const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Ib, Self::IpoIb];

    pub(super) fn of(space: rdma_port_space) -> Option<Self> {
        match space {
            rdma_port_space::RDMA_PS_TCP => Some(Self::Tcp),
            rdma_port_space::RDMA_PS_UDP => Some(Self::Udp),
            rdma_port_space::RDMA_PS_IB => Some(Self::Ib),
            rdma_port_space::RDMA_PS_IPOIB => Some(Self::IpoIb),
            _ => None,
        }
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

/// The address that an id asks to be bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindRequest {
    pub(super) space: Space,
    pub(super) address: SocketAddr,
    /// Others may have the address, too, if they say the same.
    pub(super) reuse: bool,
    /// An IPv6 wildcard stands for IPv6 addresses only.
    pub(super) only_family: bool,
}

/// An address that an id has.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) socket: Socket,
    /// With the port that was found.
    pub(super) address: SocketAddr,
    request: BindRequest,
    name: String,
}

impl BindRequest {
    fn start(&self, port: u16) -> String {
        format!("{PREFIX}{}/{port}/", self.space.name())
    }

    /// Why the very address cannot be had.
    fn in_use(&self) -> Errno {
        Errno(if self.address.ip().is_unspecified() { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE })
    }

    fn name(&self, port: u16) -> String {
        self.start(port) + &host(self.address, self.only_family)
    }
}

/// An address without its port, as names have it.
fn host(address: SocketAddr, only_family: bool) -> String {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() && !only_family => "*".to_owned(),
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// The parts of a name: its space, its port, and its address unless that is a wildcard.
pub(super) fn parse(name: &str) -> Option<(Space, u16, Option<IpAddr>)> {
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

/// The names under which a process may listen for an address, the most particular first.
pub(super) fn listeners(space: Space, address: &SocketAddr) -> [String; 3] {
    let start = format!("{PREFIX}{}/{}/", space.name(), address.port());
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    [host(*address, true), any.to_string(), "*".to_owned()].map(|host| format!("{start}{host}"))
}

/// Takes an address, or any free port of it if its port is 0. Not for under a lock: it may take as
/// long as the kernel needs to list all sockets of the host, some 2 us each. `EADDRINUSE` if
/// somebody has it, `EADDRNOTAVAIL` if somebody has one that overlaps, or if it is a wildcard: so
/// Linux tells them apart.
pub(super) fn bind(request: BindRequest) -> Result<Bound, Errno> {
    if request.address.port() != 0 {
        return take(request, request.address.port(), true);
    }
    let (first, count) = range();
    let start = random()?;
    for step in 0..count {
        let port = first + u16::try_from((start + u64::from(step)) % u64::from(count)).unwrap_or(0);
        // As a rule no process asks for a port of this range by its number: only a wildcard needs
        // to look around.
        match take(request, port, request.reuse || request.address.ip().is_unspecified()) {
            Err(Errno(libc::EADDRINUSE | libc::EADDRNOTAVAIL)) => {}
            other => return other,
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// Takes an address again that was had a moment ago. Looks for no others, so that it may be done
/// under a lock: what was let in before may stay.
pub(super) fn rebind(request: BindRequest) -> Result<Bound, Errno> {
    take(request, request.address.port(), false)
}

fn take(request: BindRequest, port: u16, look_around: bool) -> Result<Bound, Errno> {
    let socket = Socket::new()?;
    let own = request.name(port);
    let name = if request.reuse { format!("{own}~{:x}", random()?) } else { own.clone() };
    let mut attempts = ATTEMPTS;
    while let Err(error) = socket.bind(&name) {
        if error.errno as i32 != libc::EADDRINUSE {
            return Err(error.into());
        }
        attempts = attempts.checked_sub(1).ok_or(request.in_use())?;
        thread::yield_now();
    }
    if look_around {
        conflict(&request, port, &[&name], request.reuse)?;
    }
    Ok(Bound { socket, address: with_port(request.address, port), request, name })
}

/// The exclusive name of an address, which a listener has.
#[derive(Debug)]
pub(super) struct Exclusive {
    socket: Socket,
    name: String,
}

impl Bound {
    /// A function that takes the exclusive name of the address, if this is not it.
    pub(super) fn claim(&self) -> Option<impl FnOnce() -> Result<Exclusive, Errno> + use<>> {
        let (request, port, present) = (self.request, self.address.port(), self.name.clone());
        let name = request.name(port);
        (present != name).then_some(move || {
            let socket = Socket::new()?;
            socket.bind(&name)?;
            conflict(&request, port, &[&present, &name], false)?;
            Ok(Exclusive { socket, name })
        })
    }

    /// Listens, under the exclusive name if that was taken.
    pub(super) fn listen(&mut self, exclusive: Option<Exclusive>) -> Result<(), Errno> {
        if let Some(Exclusive { socket, name }) = exclusive {
            // With it the old name is free again.
            (self.socket, self.name) = (socket, name);
        }
        self.socket.listen()?;
        Ok(())
    }
}

/// Looks for names that stand in the way of one that was just taken; `ours` do not.
fn conflict(request: &BindRequest, port: u16, ours: &[&str], shared: bool) -> Result<(), Errno> {
    let own = request.name(port);
    // Without the list nothing is known, and fewer conflicts are found.
    let mut others = socket::names(&request.start(port)).unwrap_or_default();
    // These names are known without the kernel's list.
    others.push(own.clone());
    others.extend(listeners(request.space, &with_port(request.address, port)));
    others.sort_unstable();
    others.dedup();
    for other in others {
        let (host, other_is_shared) = other.split_once('~').map_or((&*other, false), |(host, _)| (host, true));
        if ours.contains(&&*other) || (shared && other_is_shared) || !overlap(&own, host) {
            continue;
        }
        // Twice: the first time another process may be trying the name.
        if socket::is_taken(&other)? && socket::is_taken(&other)? {
            return Err(if host == own { request.in_use() } else { Errno(libc::EADDRNOTAVAIL) });
        }
    }
    Ok(())
}

/// Whether two names of one port stand for a common address.
fn overlap(one: &str, other: &str) -> bool {
    let host = |name: &str| name.rsplit_once('/').map_or(String::new(), |(_, host)| host.to_owned());
    let (one, other) = (host(one), host(other));
    let is_v4 = |host: &str| !host.contains(':');
    let covers = |wide: &str, narrow: &str| match wide {
        "*" => true,
        "0.0.0.0" => narrow != "*" && is_v4(narrow),
        "::" => narrow != "*" && !is_v4(narrow),
        _ => wide == narrow,
    };
    covers(&one, &other) || covers(&other, &one)
}

/// The first ephemeral port and how many there are.
fn range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) if 0 < first && first <= last => (first, (last - first).saturating_add(1)),
        _ => (32768, 28232),
    }
}

fn random() -> Result<u64, Errno> {
    // Half of it, so that sums do not overflow.
    Ok(u64::from_ne_bytes(os::random()?) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: &str) -> BindRequest {
        BindRequest { space: Space::Ib, address: address.parse().unwrap(), reuse: false, only_family: false }
    }

    fn at(address: &str, port: u16) -> BindRequest {
        let request = request(address);
        BindRequest { address: with_port(request.address, port), ..request }
    }

    fn refused(request: BindRequest) -> i32 {
        bind(request).unwrap_err().0
    }

    #[test]
    fn any_port_is_free_and_the_kernel_s() {
        let (first, count) = range();
        let mine = bind(request("127.0.0.1:0")).unwrap();
        assert!(mine.address.port() >= first && mine.address.port() - first < count);
        assert_eq!(refused(at("127.0.0.1:0", mine.address.port())), libc::EADDRINUSE);
        let port = mine.address.port();
        drop(mine);
        bind(at("127.0.0.1:0", port)).unwrap();
    }

    #[test]
    fn wildcards_stand_in_the_way_of_what_they_cover() {
        let wild = bind(request("0.0.0.0:0")).unwrap();
        let port = wild.address.port();
        assert_eq!(refused(at("127.0.0.1:0", port)), libc::EADDRNOTAVAIL);
        assert_eq!(refused(at("[::]:0", port)), libc::EADDRNOTAVAIL);
        assert_eq!(refused(at("0.0.0.0:0", port)), libc::EADDRNOTAVAIL);
        let six = bind(BindRequest { only_family: true, ..at("[::]:0", port) }).unwrap();
        assert_eq!(refused(at("[::1]:0", port)), libc::EADDRNOTAVAIL);
        drop((wild, six));
        let particular = bind(at("127.0.0.9:0", port)).unwrap();
        assert_eq!(refused(at("0.0.0.0:0", port)), libc::EADDRNOTAVAIL);
        let _beside = bind(at("127.0.0.8:0", port)).unwrap();
        let _other_family = bind(at("[::1]:0", port)).unwrap();
        drop(particular);
    }

    #[test]
    fn an_address_is_shared_by_those_who_say_so_until_one_listens() {
        let port = bind(request("127.0.0.1:0")).unwrap().address.port();
        let shared = BindRequest { reuse: true, ..at("127.0.0.1:0", port) };
        let one = bind(shared).unwrap();
        let two = bind(shared).unwrap();
        assert_eq!(refused(at("127.0.0.1:0", port)), libc::EADDRINUSE);
        assert_eq!(one.claim().unwrap()().unwrap_err(), Errno(libc::EADDRINUSE));
        drop((one, two));
        let mut one = bind(shared).unwrap();
        let exclusive = one.claim().unwrap()().unwrap();
        one.listen(Some(exclusive)).unwrap();
        assert_eq!(refused(shared), libc::EADDRINUSE);
    }

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
