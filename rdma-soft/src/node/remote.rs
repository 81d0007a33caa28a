//! Processes of other hosts: the TCP socket at which they call, and the links to them.
//!
//! The processes of a user share the socket that listens at the chosen address (`link/share.rs`), so
//! whoever is awake accepts a call. That process reads the first message, and passes the connection
//! to the process with the slot that the message names. Each step of a stranger has its own deadline, and
//! the oldest of too many strangers goes first.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::device::Node;
use super::peers::{self, Meeting, Who};
use super::source::Source;
use crate::engine::{PeerId, Slot};
use crate::link::Link;
use crate::link::handshake::{self, Answer};
use crate::link::hello::{self, First, HelloError, Identity, Instance, Nonce, Purpose, Route};
use crate::link::hosts::{HostUse, Hosts};
use crate::link::key::Key;
use crate::link::share::{self, Shared};
use crate::link::slot;
use crate::link::stream::{Far, Stream};
use crate::link::wire::{self, Body, Kind, Packet};
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::lock::Lock;
use crate::os::tcp::Tcp;
use crate::os::thread;

/// The port of an address without one: that of RoCE, which firewalls know. RoCE is UDP.
const PORT: u16 = 4791;
/// Limit of the connections that have not proved that they hold the key.
const MAX_STRANGERS: usize = 64;
/// Limit of the connections accepted before the agent handles other events.
const ADMISSIONS: usize = 64;
/// Delay before a process asks a peer again that has answered `Busy`.
const BUSY: Duration = Duration::from_millis(2);
/// Limit of the time in which a link comes up.
const OPENING: Duration = Duration::from_secs(20);
/// Limit of the time of one call. The next one may come to another process of the same host.
const CALL: Duration = Duration::from_secs(4);
/// Calls that may end without an answer: a process that accepts one may die before it passes the
/// call on.
const CALLS: usize = 4;
/// At most one line of the log about refused strangers in this time.
const QUIET: Duration = Duration::from_secs(60);

/// The values of `RDMA_SOFT_TCP`, in words.
pub(crate) const VALUES: &str = "an IP address of this host, with a port or without";

/// Reads the value of `RDMA_SOFT_TCP`: an address of this host, with a port or without.
pub(crate) fn parse(value: &str) -> Option<SocketAddr> {
    let address = value.parse().ok().or_else(|| value.parse().ok().map(|ip| SocketAddr::new(ip, PORT)))?;
    (!address.ip().is_unspecified() && !address.ip().is_multicast() && address.port() != 0).then_some(address)
}

/// The address that the environment chooses, if it does. A set-user-ID program takes none: its caller
/// would choose who is let in.
fn address_from_environment() -> Option<SocketAddr> {
    parse(rdma_sys::trusted_variable("RDMA_SOFT_TCP")?.to_str()?)
}

/// The part of a node that reaches other hosts.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The address at which this process listens, and from which it connects.
    pub(crate) address: SocketAddr,
    key: Key,
    shared: Shared,
    instance: Instance,
    hosts: Arc<Hosts>,
    /// The nonces of the connections that this process is opening.
    openings: Lock<HashSet<Nonce>>,
    strangers: Lock<Strangers>,
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

    fn identity(&self, node: &Node) -> Identity {
        Identity { slot: node.lock().slots()[0], instance: self.instance }
    }

    /// Connects to the process with a slot, and runs the handshake.
    fn call(&self, to: IpAddr, first: &First, deadline: Instant) -> Result<(Tcp, Identity, Answer), HelloError> {
        let from = self.address.ip();
        let socket = Tcp::connect(from, SocketAddr::new(to, self.address.port()), deadline)?;
        let route = Route { opener: from, acceptor: to };
        let (identity, answer) = hello::open(&socket, &self.key, route, first, deadline)?;
        Ok((socket, identity, answer))
    }

    /// Whether the process with the slot that an opener claims says that it is this opener.
    fn is_confirmed(&self, us: Identity, host: IpAddr, opener: &First) -> Result<bool, HelloError> {
        let deadline = Instant::now() + hello::PATIENCE;
        let purpose = Purpose::Confirm(opener.nonce);
        let question = First { purpose, target: opener.opener.slot, opener: us, nonce: os::random()? };
        let (_, identity, answer) = self.call(host, &question, deadline)?;
        Ok(answer == Answer::Welcome && identity == opener.opener)
    }

    /// Counts a refused stranger, and says so at most once a minute.
    fn refused(&self, why: &HelloError) {
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
struct Stranger {
    node: &'static Node,
    socket: Arc<Tcp>,
}

impl Stranger {
    /// Counts a connection; ends the oldest one if there are too many.
    fn new(node: &'static Node, remote: &Remote, socket: Arc<Tcp>) -> Self {
        let mut strangers = remote.strangers.lock();
        strangers.waiting.push_back(Arc::clone(&socket));
        if strangers.waiting.len() > MAX_STRANGERS {
            if let Some(oldest) = strangers.waiting.pop_front() {
                oldest.shut_down();
            }
        }
        Self { node, socket }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Some(remote) = &self.node.remote {
            remote.strangers.lock().waiting.retain(|other| !Arc::ptr_eq(other, &self.socket));
        }
    }
}

/// A nonce that this process confirms.
struct Opening<'a> {
    remote: &'a Remote,
    nonce: Nonce,
}

impl<'a> Opening<'a> {
    fn new(remote: &'a Remote) -> os::Result<Self> {
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

/// Connects to a process of another host in a thread, and tells the engine if that fails.
pub(super) fn dial(node: &'static Node, peer: PeerId) {
    let Some(remote) = &node.remote else { return peers::give_up(node, peer) };
    let Some((host, address)) = remote.hosts.of(peer.host) else { return peers::give_up(node, peer) };
    let started = thread::spawn("rdma-soft-dial", move || {
        if let Err(error) = reach(node, remote, host, address, peer.slot) {
            // First the reason: a program that learns of the failure may look for it.
            log!(WARN, "no link to process number {} of host {address}: {error}", peer.slot.0);
            peers::give_up(node, peer);
        }
    });
    if let Err(error) = started {
        log!(
            WARN,
            "no link to process number {} of host {address}: no thread can be started for it: {error}",
            peer.slot.0
        );
        peers::give_up(node, peer);
    }
}

/// Sets up a link to the process with a slot.
fn reach(node: &'static Node, remote: &Remote, host: HostUse, address: IpAddr, slot: Slot) -> Result<(), HelloError> {
    let deadline = Instant::now() + OPENING;
    let peer = PeerId { host: host.id(), slot };
    let (mut host, mut calls) = (Some(host), 0);
    loop {
        let error = match open(node, remote, &mut host, address, peer) {
            Ok(true) => return Ok(()),
            Ok(false) => HelloError::System(os::Error { call: "the handshake", errno: Errno::ETIMEDOUT }),
            Err(error) if error.is_silence() && calls < CALLS => {
                calls += 1;
                error
            }
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        sleep(BUSY);
    }
}

/// False if another handshake with the process is under way.
fn open(
    node: &'static Node,
    remote: &Remote,
    host: &mut Option<HostUse>,
    address: IpAddr,
    peer: PeerId,
) -> Result<bool, HelloError> {
    let Some(_meeting) = Meeting::open(node, Who::Far(peer)) else { return Ok(learn(node, peer, peer.slot)) };
    let opening = Opening::new(remote)?;
    let us = remote.identity(node);
    let first = First { purpose: Purpose::Link, target: peer.slot, opener: us, nonce: opening.nonce };
    let (socket, identity, answer) = remote.call(address, &first, Instant::now() + CALL)?;
    match answer {
        Answer::Busy => Ok(false),
        Answer::Known => Ok(learn(node, PeerId { slot: identity.slot, ..peer }, peer.slot)),
        Answer::Welcome => {
            let Some(host) = host.take() else { return Err(HelloError::Malformed) };
            add(node, socket, Far { host, identity }, peer.slot).map(|()| true)
        }
    }
}

/// Gives the listening socket to newcomers.
pub(super) fn give(node: &Node) {
    if let Some(remote) = &node.remote {
        remote.shared.give();
    }
}

/// Accepts the connections that wait.
pub(super) fn accept(node: &'static Node) {
    let Some(remote) = &node.remote else { return };
    for _ in 0..ADMISSIONS {
        let socket = match remote.shared.listener.accept() {
            Ok(socket) => Arc::new(socket),
            Err(os::Error { errno: Errno::EAGAIN, .. }) => break,
            // The caller has gone.
            Err(os::Error { errno: Errno::ECONNABORTED | Errno::EINTR, .. }) => continue,
            Err(error) => {
                log!(WARN, %error, "a caller cannot be let in");
                // Most likely this process is out of descriptors. The caller waits in the kernel's
                // queue, and an immediate retry would fail again.
                sleep(Duration::from_millis(10));
                break;
            }
        };
        let stranger = Stranger::new(node, remote, socket);
        let started = thread::spawn("rdma-soft-call", move || {
            if let Err(error) = route(node, remote, stranger) {
                remote.refused(&error);
            }
        });
        if let Err(error) = started {
            log!(WARN, %error, "no thread to let a caller in");
            break;
        }
    }
    let rearmed = node.event_loop.rearm(&remote.shared.listener, Source::Caller.token());
    debug_assert!(rearmed.is_ok(), "a listener that is not watched");
}

/// Reads the first message of a stranger, and passes the connection to the process that it names.
fn route(node: &'static Node, remote: &'static Remote, stranger: Stranger) -> Result<(), HelloError> {
    let first = First::receive(&stranger.socket, Instant::now() + hello::PATIENCE)?;
    if node.lock().slots().contains(&first.target) {
        return meet(node, remote, stranger, &first);
    }
    let process = slot::connect(first.target, hello::PATIENCE).map_err(|_| HelloError::Nobody)?;
    // Only a process of this user gets the connection.
    handshake::screen(&process).map_err(|_| HelloError::Nobody)?;
    let body = Body::default().bytes(&first.bytes());
    wire::send(&process, Kind::Caller, &body, &[stranger.socket.as_fd()])?;
    Ok(())
}

/// Goes on with a connection that another process of this user has accepted.
pub(super) fn take_over(node: &'static Node, mut packet: Packet) {
    let Some(remote) = &node.remote else { return };
    let taken = || {
        let first = First::parse(&packet.body.take().map_err(|_| HelloError::Malformed)?)?;
        let fd = packet.fds.pop().ok_or(HelloError::Malformed)?;
        let stranger = Stranger::new(node, remote, Arc::new(Tcp::of_fd(fd)?));
        meet(node, remote, stranger, &first)
    };
    if let Err(error) = { taken }() {
        remote.refused(&error);
    }
}

/// Runs the acceptor's side of the handshake.
fn meet(node: &'static Node, remote: &'static Remote, stranger: Stranger, first: &First) -> Result<(), HelloError> {
    let socket = Arc::clone(&stranger.socket);
    if !node.lock().slots().contains(&first.target) {
        return Err(HelloError::Nobody);
    }
    let address = socket.peer()?.ip().to_canonical();
    let route = Route { opener: address, acceptor: socket.local()?.ip().to_canonical() };
    let us = remote.identity(node);
    let deadline = Instant::now() + hello::PATIENCE;
    let mut meeting = None;
    let mut host = None;
    let decide = || {
        // The caller holds the key.
        drop(stranger);
        if let Purpose::Confirm(nonce) = first.purpose {
            let is_ours = remote.openings.lock().contains(&nonce);
            return Ok(if is_ours { Answer::Welcome } else { Answer::Busy });
        }
        if !remote.is_confirmed(us, address, first)? {
            return Err(HelloError::Unconfirmed);
        }
        let held = remote.hold(address).ok_or(os::Error { call: "a number for the host", errno: Errno::ENOMEM })?;
        let peer = PeerId { host: held.id(), slot: first.opener.slot };
        let (answer, ours) = Meeting::accept(
            node,
            Who::Far(peer),
            // The link of an earlier process with the slot goes when the new one is added.
            |state| {
                state.link_to_far(peer).and_then(Link::stream).is_some_and(|link| link.far.identity == first.opener)
            },
            |_| (remote.address.ip(), us.slot) < (address, peer.slot),
        );
        (meeting, host) = (ours, Some(held));
        Ok(answer)
    };
    let answer = hello::accept(&socket, &remote.key, route, first, us, deadline, decide)?;
    let (Some(host), Answer::Welcome) = (host, answer) else { return Ok(()) };
    let socket = Arc::into_inner(socket).ok_or(HelloError::Malformed)?;
    let added = add(node, socket, Far { host, identity: first.opener }, first.opener.slot);
    drop(meeting);
    added
}

/// Uses the link to a process for one more of its slots. False if there is no link.
fn learn(node: &Node, process: PeerId, slot: Slot) -> bool {
    let mut state = node.lock();
    let Some(id) = state.link_to_far(process).map(|link| link.id) else { return false };
    state.engine.handle_link_up(PeerId { slot, ..process }, id, None);
    state.after_call();
    true
}

/// Adds a new link to the node and tells the engine.
fn add(node: &Node, socket: Tcp, far: Far, slot: Slot) -> Result<(), HelloError> {
    socket.prepare_for_frames()?;
    let (host, identity) = (far.host.id(), far.identity);
    let mut state = node.lock();
    if let Some(old) = state.link_to_far(PeerId { host, slot: identity.slot }).map(|link| link.id) {
        // The slot has one process at a time: the old one has died.
        state.remove_link(old, "another process has its number");
    }
    let link = state.add_stream(Stream::new(socket, far));
    let (id, watched) = (link.id, node.watch(link));
    log!(DEBUG, host = host.0, slot = identity.slot.0, "link to another host up");
    if let Err(error) = watched {
        state.remove_link(id, "it cannot be watched");
        return Err(error.into());
    }
    for slot in if slot == identity.slot { vec![slot] } else { vec![identity.slot, slot] } {
        state.engine.handle_link_up(PeerId { host, slot }, id, None);
    }
    state.progress();
    state.wake_agent();
    Ok(())
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
        for value in ["", "0.0.0.0", "::", "224.0.0.1", "10.0.0.2:0", "10.0.0.2:65536", "auto", "10.0.0.2 "] {
            assert_eq!(of(value), "", "{value}");
        }
    }
}
