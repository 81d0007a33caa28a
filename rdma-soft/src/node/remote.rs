//! What a node needs to reach other hosts: the address, the key, the numbers of hosts, and the
//! connections that have proved nothing yet. `callers` has the links.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::source::Source;
use crate::engine::Slot;
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, HelloError, Identity, Instance, Nonce, Purpose, Route};
use crate::link::hosts::{HostUse, Hosts};
use crate::link::key::Key;
use crate::link::share::{self, Shared};
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::lock::Lock;
use crate::os::tcp::Tcp;

/// The port of an address without one: that of RoCE, which firewalls know. RoCE is UDP.
const PORT: u16 = 4791;
/// Limit of the connections that have not proved that they hold the key.
const MAX_STRANGERS: usize = 64;
/// At most one line of the log about refused strangers in this time.
const QUIET: Duration = Duration::from_secs(60);

/// The values of `RDMA_SOFT_TCP`, in words.
pub(crate) const VALUES: &str = "an IP address of this host, with a port or without";

/// Reads the value of `RDMA_SOFT_TCP`: an address of this host, with a port or without.
pub(crate) fn parse(value: &str) -> Option<SocketAddr> {
    let mut address: SocketAddr =
        value.parse().ok().or_else(|| value.parse().ok().map(|ip| SocketAddr::new(ip, PORT)))?;
    address.set_ip(address.ip().to_canonical());
    (!address.ip().is_unspecified() && !address.ip().is_multicast() && address.port() != 0).then_some(address)
}

/// The address that the environment chooses, if it does. A set-user-ID program takes none: its
/// caller would choose who is let in.
fn address_from_environment() -> Option<SocketAddr> {
    parse(rdma_sys::trusted_variable("RDMA_SOFT_TCP")?.to_str()?)
}

/// The part of a node that reaches other hosts.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The address at which this process listens, and from which it connects.
    pub(crate) address: SocketAddr,
    pub(super) key: Key,
    pub(super) shared: Shared,
    instance: Instance,
    pub(super) hosts: Arc<Hosts>,
    /// The nonces of the connections that this process is opening.
    pub(super) openings: Lock<HashSet<Nonce>>,
    strangers: Lock<Strangers>,
    /// Threads that are passing calls on.
    calls: Arc<()>,
}

/// Connections that have not proved anything, the oldest first.
#[derive(Debug, Default)]
struct Strangers {
    waiting: VecDeque<Arc<Tcp>>,
    /// Refused since the last line of the log, and the time of that line.
    refused: u64,
    told: Option<Instant>,
}

impl Remote {
    /// Listens at the address that the environment chooses; `None` if it chooses none.
    pub(super) fn start(event_loop: &EventLoop, slot: Slot) -> os::Result<Option<Self>> {
        let Some(address) = address_from_environment() else { return Ok(None) };
        let [path, descriptor] = ["RDMA_SOFT_KEY", "RDMA_SOFT_KEY_FD"].map(rdma_sys::trusted_variable);
        let key = Key::read(path.as_deref(), descriptor.as_deref()).map_err(|error| {
            log!(ERROR, "RDMA_SOFT_TCP={address}: {error}");
            os::Error { call: "the check of the key", errno: Errno::EINVAL }
        })?;
        let shared = share::join(address, slot).inspect_err(|error| {
            let error = *error;
            log!(ERROR, "RDMA_SOFT_TCP={address}: this process cannot listen there: {error}");
        })?;
        event_loop.watch_once(&shared.listener, Source::Caller.token())?;
        event_loop.watch(&shared.door, Source::Door.token())?;
        log!(DEBUG, %address, "listens for other hosts");
        Ok(Some(Self {
            address,
            key,
            shared,
            instance: os::random()?,
            hosts: Arc::default(),
            openings: Lock::default(),
            strangers: Lock::default(),
            calls: Arc::default(),
        }))
    }

    /// The number of the host with an address; `None` if too many hosts are in use.
    pub(crate) fn hold(&self, address: IpAddr) -> Option<HostUse> {
        self.hosts.hold(address)
    }

    /// Whether a socket listens at an address of this host, at the port of this process: processes
    /// with that address are those of another host, whatever their user.
    pub(crate) fn is_listened_at(&self, address: IpAddr) -> bool {
        let address = SocketAddr::new(address, self.address.port());
        Tcp::is_taken(address)
    }

    /// This process, whose first slot is `slot`.
    pub(super) fn identity(&self, slot: Slot) -> Identity {
        Identity { slot, instance: self.instance }
    }

    /// Connects to the process with a slot, and runs the handshake.
    pub(super) fn call(
        &self,
        to: IpAddr,
        first: &First,
        deadline: Instant,
    ) -> Result<(Tcp, Identity, Answer), HelloError> {
        let from = self.address.ip();
        let socket = Tcp::connect(from, SocketAddr::new(to, self.address.port()), deadline)?;
        let route = Route { opener: from, acceptor: to };
        let (identity, answer) = hello::open(&socket, &self.key, route, first, deadline)?;
        Ok((socket, identity, answer))
    }

    /// Whether the process with the slot that an opener claims says that it is this opener.
    pub(super) fn is_confirmed(&self, us: Identity, host: IpAddr, opener: &First) -> Result<bool, HelloError> {
        let deadline = Instant::now() + hello::PATIENCE;
        let purpose = Purpose::Confirm(opener.nonce);
        let question = First { purpose, target: opener.opener.slot, opener: us, nonce: os::random()? };
        let (_, identity, answer) = self.call(host, &question, deadline)?;
        Ok(answer == Answer::Welcome && identity == opener.opener)
    }

    /// Counts a call until the token is dropped; `None` if `limit` calls are being passed on.
    pub(super) fn call_begins(&self, limit: usize) -> Option<Arc<()>> {
        // This process accepts in one thread, so no other call begins meanwhile.
        (Arc::strong_count(&self.calls) <= limit).then(|| Arc::clone(&self.calls))
    }

    /// Counts a refused stranger, and says so at most once a minute.
    pub(super) fn refused(&self, why: &HelloError) {
        let mut strangers = self.strangers.lock();
        strangers.refused += 1;
        if strangers.told.is_none_or(|told| told.elapsed() >= QUIET) {
            let (count, address, why) = (core::mem::take(&mut strangers.refused), self.address, *why);
            strangers.told = Some(Instant::now());
            log!(WARN, count, "callers at {address} were refused, the last because: {why}");
        }
    }
}

/// A connection that counts as a stranger's until this is dropped.
pub(super) struct Stranger {
    remote: &'static Remote,
    pub(super) socket: Arc<Tcp>,
}

impl Stranger {
    /// Counts a connection; ends the oldest one if there are too many.
    pub(super) fn new(remote: &'static Remote, socket: Arc<Tcp>) -> Self {
        let mut strangers = remote.strangers.lock();
        strangers.waiting.push_back(Arc::clone(&socket));
        if strangers.waiting.len() > MAX_STRANGERS {
            if let Some(oldest) = strangers.waiting.pop_front() {
                oldest.shut_down();
            }
        }
        Self { remote, socket }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.remote.strangers.lock().waiting.retain(|other| !Arc::ptr_eq(other, &self.socket));
    }
}

/// A nonce that this process confirms.
pub(super) struct Opening<'a> {
    remote: &'a Remote,
    pub(super) nonce: Nonce,
}

impl<'a> Opening<'a> {
    pub(super) fn new(remote: &'a Remote) -> os::Result<Self> {
        let nonce = os::random()?;
        remote.openings.lock().insert(nonce);
        Ok(Self { remote, nonce })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.remote.openings.lock().remove(&self.nonce);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_this_host_with_a_port_or_without() {
        let of = |value: &str| parse(value).map(|address| address.to_string()).unwrap_or_default();
        assert_eq!(of("10.0.0.2"), "10.0.0.2:4791");
        assert_eq!(of("127.0.0.3:7000"), "127.0.0.3:7000");
        assert_eq!(of("fd00::2"), "[fd00::2]:4791");
        assert_eq!(of("[fd00::2]:7000"), "[fd00::2]:7000");
        assert_eq!(of("::ffff:10.0.0.2"), "10.0.0.2:4791");
        for value in
            ["", "0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "10.0.0.2:0", "10.0.0.2:65536", "auto", "10.0.0.2 "]
        {
            assert_eq!(of(value), "", "{value}");
        }
    }
}
