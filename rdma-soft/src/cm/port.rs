//! Allocation of addresses and ports to ids, through the names of abstract Unix sockets.
//!
//! A name ([`crate::link::port`]) consists of port space, port and address. A bound id owns the
//! socket with its name; the id later listens or connects with this socket, so that the kernel
//! reports the name to the other side. Addresses that overlap (a wildcard and any other) are
//! different names: `bind` takes a name, then looks for overlapping names and releases its own if
//! one is taken. An id with `RDMA_OPTION_ID_REUSEADDR` has a shared name, with a random suffix,
//! until it listens.
//!
//! `bind` looks for overlapping names in `/proc/self/net/unix` without a lock, because the kernel
//! takes some 2 us for each socket of the host.

use std::net::SocketAddr;
use std::thread;

use rdma_sys::rdma_port_space;

use super::address::with_port;
use crate::engine::Errno;
use crate::link::port::{self, Space, listeners};
use crate::os;
use crate::os::socket::{self, Socket};

/// Number of retries for a name that is taken: another process may hold the name only while it runs
/// [`socket::is_taken`].
const ATTEMPTS: u32 = 3;

/// The port space of C's number.
pub(super) fn space_of(space: rdma_port_space) -> Option<Space> {
    match space {
        rdma_port_space::RDMA_PS_TCP => Some(Space::Tcp),
        rdma_port_space::RDMA_PS_UDP => Some(Space::Udp),
        rdma_port_space::RDMA_PS_IB => Some(Space::Ib),
        rdma_port_space::RDMA_PS_IPOIB => Some(Space::IpoIb),
        _ => None,
    }
}

/// The address to which an id asks to be bound, and the options that matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindRequest {
    pub(super) space: Space,
    pub(super) address: SocketAddr,
    /// Other ids that also set `reuse` may have the same address.
    pub(super) reuse: bool,
    /// An IPv6 wildcard covers IPv6 addresses only.
    pub(super) only_family: bool,
}

/// The address of a bound id and the socket with its name.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) socket: Socket,
    /// The bound address, with the allocated port.
    pub(super) address: SocketAddr,
    request: BindRequest,
    name: String,
}

impl BindRequest {
    fn start(&self, port: u16) -> String {
        port::start(self.space, port)
    }

    /// Error for an address that is taken itself, and not only overlapped.
    fn in_use(&self) -> Errno {
        Errno(if self.address.ip().is_unspecified() { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE })
    }

    fn name(&self, port: u16) -> String {
        self.start(port) + &port::host(self.address, self.only_family)
    }
}

/// Takes an address, with any free ephemeral port if its port is 0. Do not call under a lock: the
/// kernel may have to list all sockets of the host, some 2 us each. As in Linux, `EADDRINUSE` if
/// the address is taken; `EADDRNOTAVAIL` if an overlapping address is taken, or if a taken address
/// is a wildcard.
pub(super) fn bind(request: BindRequest) -> Result<Bound, Errno> {
    if request.address.port() != 0 {
        return take(request, request.address.port(), true);
    }
    let (first, count) = range();
    let start = random()?;
    for step in 0..count {
        let port = first + u16::try_from((start + u64::from(step)) % u64::from(count)).unwrap_or(0);
        // Processes rarely ask for a port of the ephemeral range by number, so only shared names
        // and wildcards look for conflicts.
        match take(request, port, request.reuse || request.address.ip().is_unspecified()) {
            Err(Errno(libc::EADDRINUSE | libc::EADDRNOTAVAIL)) => {}
            other => return other,
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// Takes an address again that its id held until a moment ago. Does not look for conflicts, because
/// `bind` did, so this function may be called under a lock.
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

/// The exclusive name of an address, and its socket; a listener has this name.
#[derive(Debug)]
pub(super) struct Exclusive {
    socket: Socket,
    name: String,
}

impl Bound {
    /// Returns a function that takes the exclusive name of the address; `None` if the id has this
    /// name already.
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

    /// Starts to listen, under the exclusive name if one was taken.
    pub(super) fn listen(&mut self, exclusive: Option<Exclusive>) -> Result<(), Errno> {
        if let Some(Exclusive { socket, name }) = exclusive {
            // Dropping the old socket frees the shared name.
            (self.socket, self.name) = (socket, name);
        }
        self.socket.listen()?;
        Ok(())
    }
}

/// Looks for taken names that conflict with a name that was just taken. Ignores those in `ours`.
fn conflict(request: &BindRequest, port: u16, ours: &[&str], shared: bool) -> Result<(), Errno> {
    let own = request.name(port);
    // If the kernel's list is unreadable, only conflicts with the names below are found.
    let mut others = socket::names(&request.start(port)).unwrap_or_default();
    // Names that can be computed without the kernel's list.
    others.push(own.clone());
    others.extend(listeners(request.space, &with_port(request.address, port)));
    others.sort_unstable();
    others.dedup();
    for other in others {
        let (host, other_is_shared) = other.split_once('~').map_or((&*other, false), |(host, _)| (host, true));
        if ours.contains(&&*other) || (shared && other_is_shared) || !overlap(&own, host) {
            continue;
        }
        // Asks twice, because another process may hold the name only while it runs `is_taken`.
        if socket::is_taken(&other)? && socket::is_taken(&other)? {
            return Err(if host == own { request.in_use() } else { Errno(libc::EADDRNOTAVAIL) });
        }
    }
    Ok(())
}

/// Whether two names of one port have an address in common.
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

/// The first ephemeral port and the number of ephemeral ports.
fn range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) if 0 < first && first <= last => (first, (last - first).saturating_add(1)),
        _ => (32768, 28232),
    }
}

fn random() -> Result<u64, Errno> {
    // Half the range, so that a sum with a port count does not overflow.
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
}
