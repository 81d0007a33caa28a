//! Links to processes of other hosts: calls to them, and theirs to this process.
//!
//! `admission` accepts the calls, and passes each to the process with the slot that its first
//! message names. A stranger that calls this process has a thread until its proof.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::device::{Node, Who};
use super::meeting::{Meeting, give_up};
use super::remote::{Opening, Remote, Stage, Stranger};
use super::state::State;
use crate::engine::{Gid, Host, LinkId, PeerId, Slot};
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, HelloError, Identity, Opened, Purpose, Route};
use crate::link::hosts::HostUse;
use crate::link::stream::{Far, Stream};
use crate::link::tls::Records;
use crate::link::wire::Packet;
use crate::log::log;
use crate::os;
use crate::os::socket::Socket;
use crate::os::tcp::Tcp;
use crate::os::thread;

/// Limit of the callers with the key that are let in at a time. Further ones are told to call
/// again: they must not wait for a thread in which this process could confirm its own calls, since
/// the callers' hosts may wait for that.
const MAX_LINKS: usize = 128;
/// Delay before a process asks a peer again that has answered `Busy`, at first and at most.
const BUSY: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Limit of the time in which a link comes up.
const OPENING: Duration = Duration::from_secs(20);
/// Calls that may end without an answer: a process that accepts one may die before it passes the
/// call on.
const CALLS: usize = 4;
/// Limit of the time of one call. The next one may come to another process of the same host.
const CALL: Duration = Duration::from_secs(4);

/// Connects to a process of another host in a thread, and tells the engine if that fails.
pub(super) fn dial(node: &'static Node, peer: PeerId) {
    let Some(remote) = &node.remote else { return give_up(node, peer) };
    let Some((host, address)) = remote.hosts.of(peer.host) else { return give_up(node, peer) };
    let started = thread::spawn("rdma-soft-dial", move || {
        if let Err(error) = reach(node, remote, host, address, peer.slot) {
            // First the reason: a program that learns of the failure may look for it.
            log!(WARN, "no link to process number {} of host {address}: {error}", peer.slot.0);
            give_up(node, peer);
        }
    });
    if let Err(error) = started {
        log!(
            WARN,
            "no link to process number {} of host {address}: no thread can be started for it: {error}",
            peer.slot.0
        );
        give_up(node, peer);
    }
}

/// Sets up a link to the process with a slot.
fn reach(node: &'static Node, remote: &Remote, host: HostUse, address: IpAddr, slot: Slot) -> Result<(), HelloError> {
    let deadline = Instant::now() + OPENING;
    let peer = PeerId { host: host.id(), slot };
    let (mut host, mut calls, mut pause) = (Some(host), 0, BUSY);
    // The process with the slot, once it has said who it is.
    let (mut process, mut _further) = (None, None);
    loop {
        let error = match open(node, remote, &mut host, address, peer, process) {
            Ok(Tried::Up) => return Ok(()),
            Ok(Tried::Has(identity)) if process != Some(identity) => {
                process = Some(identity);
                _further = Some(Further::new(node, peer, identity));
                continue;
            }
            Ok(Tried::Has(_) | Tried::Busy) => {
                HelloError::System(os::Error { call: "the handshake", errno: Errno::ETIMEDOUT })
            }
            Err(error @ HelloError::Busy) => error,
            Err(error) if error.is_silence() && calls < CALLS => {
                calls += 1;
                error
            }
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        sleep(pause);
        // The other side needs a thread and a call back for each attempt.
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// The outcome of a call.
enum Tried {
    /// There is a link to the slot.
    Up,
    /// The process with the slot has this first slot, by which it must be called.
    Has(Identity),
    /// Another handshake with the process is under way.
    Busy,
}

/// Calls the process with the slot of `peer`, by the first slot of `process` if that is known.
fn open(
    node: &'static Node,
    remote: &Remote,
    host: &mut Option<HostUse>,
    address: IpAddr,
    peer: PeerId,
    process: Option<Identity>,
) -> Result<Tried, HelloError> {
    let called = PeerId { slot: process.map_or(peer.slot, |process| process.slot), ..peer };
    let known = |slot: Slot, process: Option<Identity>| {
        if learn(node, PeerId { slot, ..peer }, process, peer.slot) { Tried::Up } else { Tried::Busy }
    };
    // The link of an earlier process with the slot goes when the new one is added.
    let has_link = |state: &State| is_linked(state, called, process);
    let Some(_meeting) = Meeting::open(node, Who::Far(called), has_link) else {
        return Ok(known(called.slot, process));
    };
    let opening = Opening::new(remote)?;
    let us = remote.identity(node.lock().slots()[0]);
    let (purpose, protection) = (Purpose::Link, remote.protection);
    let first = First { purpose, protection, target: called.slot, opener: us, nonce: opening.nonce };
    let (socket, Opened { acceptor: identity, answer, records }) =
        remote.call(address, &first, Instant::now() + CALL)?;
    if process.is_some_and(|process| process != identity) {
        // Another process has the first slot now, and may lack the other one.
        return Err(HelloError::Nobody);
    }
    match answer {
        Answer::Busy => Ok(Tried::Busy),
        Answer::Known => match known(identity.slot, Some(identity)) {
            Tried::Busy if identity.slot != called.slot => Ok(Tried::Has(identity)),
            tried => Ok(tried),
        },
        Answer::Welcome => {
            // A call before may have failed when its link was added.
            let held = host.take().or_else(|| remote.hold(address)).filter(|held| held.id() == peer.host);
            let Some(host) = held else { return Err(HelloError::Malformed) };
            add(node, socket, records, Far { host, identity }, peer.slot).map(|()| Tried::Up)
        }
    }
}

/// A slot of a process by which this process calls it, and which is not the first: a link that the
/// other process sets up meanwhile serves it at once.
struct Further {
    node: &'static Node,
    entry: ((Host, Identity), Slot),
}

impl Further {
    fn new(node: &'static Node, peer: PeerId, process: Identity) -> Self {
        let entry = ((peer.host, process), peer.slot);
        node.meetings.further.lock().push(entry);
        Self { node, entry }
    }
}

impl Drop for Further {
    fn drop(&mut self) {
        let mut further = self.node.meetings.further.lock();
        if let Some(at) = further.iter().position(|entry| *entry == self.entry) {
            further.swap_remove(at);
        }
    }
}

/// Goes on with a stranger that calls this process, in a thread: the stranger has a place, so there
/// are few of these.
pub(super) fn meet_in_thread(
    node: &'static Node,
    remote: &'static Remote,
    stranger: Stranger,
    first: First,
    deadline: Instant,
) {
    remote.goes_on(&stranger, Stage::Answered);
    let started = thread::spawn("rdma-soft-call", move || {
        if let Err(error) = meet(node, remote, stranger, &first, deadline) {
            remote.refused(&error);
        }
    });
    if let Err(error) = started {
        remote.refused(&error.into());
    }
}

/// Goes on with a connection that another process of this user has accepted. That process counts
/// the stranger until `process`, the socket to it, is closed.
pub(super) fn take_over(node: &'static Node, process: Socket, mut packet: Packet) {
    let Some(remote) = &node.remote else { return };
    let taken = || {
        let malformed = |_| HelloError::Malformed;
        let first = First::parse(&packet.body.take().map_err(malformed)?)?;
        let left = Duration::from_millis(packet.body.take_u64().map_err(malformed)?);
        let socket = Arc::new(Tcp::of_fd(packet.fds.pop().ok_or(HelloError::Malformed)?)?);
        let deadline = Instant::now() + left.min(hello::PATIENCE);
        let stranger = Stranger::placed(remote, socket, deadline)?;
        drop(process);
        meet(node, remote, stranger, &first, deadline)
    };
    if let Err(error) = { taken }() {
        remote.refused(&error);
    }
}

/// Runs the acceptor's side of the handshake.
fn meet(
    node: &'static Node,
    remote: &'static Remote,
    stranger: Stranger,
    first: &First,
    deadline: Instant,
) -> Result<(), HelloError> {
    let socket = Arc::clone(&stranger.socket);
    if !node.lock().slots().contains(&first.target) {
        return Err(HelloError::Nobody);
    }
    let route = Route::of_acceptor(&socket)?;
    // Another process of this user may listen at another address, and speaks for that one alone.
    if route.acceptor != remote.address {
        return Err(HelloError::Nobody);
    }
    let address = route.opener.ip();
    let us = remote.identity(node.lock().slots()[0]);
    let (mut meeting, mut host, mut link) = (None, None, None);
    let decide = || {
        // The caller holds the key.
        drop(stranger);
        if let Purpose::Confirm(nonce) = first.purpose {
            let is_ours = remote.openings.lock().contains(&nonce);
            return Ok(if is_ours { Answer::Welcome } else { Answer::Busy });
        }
        // Handshakes of two processes exclude each other by their first slots: the caller learns
        // this process's, and calls that one, unless it has a link.
        if first.target != us.slot {
            return Ok(Answer::Known);
        }
        link = remote.link_begins(MAX_LINKS);
        if link.is_none() {
            return Ok(Answer::Busy);
        }
        let held = remote.hold(address).ok_or(os::Error { call: "a number for the host", errno: Errno::ENOMEM })?;
        let peer = PeerId { host: held.id(), slot: first.opener.slot };
        // The link of an earlier process with the slot goes when the new one is added.
        let has_link = |state: &State| is_linked(state, peer, Some(first.opener));
        let opens_first = |_: &State| (remote.address.ip(), us.slot) < (address, peer.slot);
        // Half of all calls meet one in the other direction: the peer's host need not be asked.
        if let Some(answer) = Meeting::refusal(node, Who::Far(peer), has_link, opens_first) {
            return Ok(answer);
        }
        match remote.is_confirmed(us, address, first) {
            Ok(true) => {}
            Ok(false) => return Err(HelloError::Unconfirmed),
            Err(HelloError::Busy) => return Ok(Answer::Busy),
            Err(error) => return Err(error),
        }
        let (answer, ours) = Meeting::accept(node, Who::Far(peer), has_link, opens_first);
        (meeting, host) = (ours, Some(held));
        Ok(answer)
    };
    let (answer, records) = hello::accept(&socket, remote.terms(), route, first, us, deadline, decide)?;
    let (Some(host), Answer::Welcome) = (host, answer) else { return Ok(()) };
    let socket = Arc::into_inner(socket).ok_or(HelloError::Malformed)?;
    let added = add(node, socket, records, Far { host, identity: first.opener }, first.opener.slot);
    drop((meeting, link));
    added
}

/// Whether there is a link to the process with a first slot; to this one, if it has said who it is.
fn is_linked(state: &State, first: PeerId, process: Option<Identity>) -> bool {
    link_to(state, first, process).is_some()
}

fn link_to(state: &State, first: PeerId, process: Option<Identity>) -> Option<LinkId> {
    let (id, stream) = state.stream_to(first)?;
    process.is_none_or(|process| stream.far.identity == process).then_some(id)
}

/// Uses the link to a process for one more of its slots. False if there is no link.
fn learn(node: &Node, first: PeerId, process: Option<Identity>, slot: Slot) -> bool {
    let mut state = node.lock();
    let Some(id) = link_to(&state, first, process) else { return false };
    state.engine.handle_link_up(PeerId { slot, ..first }, id, None);
    state.after_call();
    true
}

/// Adds a new link to the node and tells the engine.
fn add(node: &Node, socket: Tcp, records: Option<Records>, far: Far, slot: Slot) -> Result<(), HelloError> {
    socket.prepare_for_frames()?;
    let [from, to] = [socket.peer()?, socket.local()?].map(|end| Gid::from_address(end.ip().to_canonical()));
    let (host, identity) = (far.host.id(), far.identity);
    let further = node.meetings.further.lock();
    let mut state = node.lock();
    if let Some((old, _)) = state.stream_to(PeerId { host, slot: identity.slot }) {
        // The slot has one process at a time: the old one has died.
        state.remove_stream(old, "another process has its number");
    }
    let is_encrypted = records.is_some();
    let stream = Stream::new(socket, records, far);
    let watched = node.watch_stream(&stream);
    let id = state.add_stream(stream);
    log!(DEBUG, host = host.0, slot = identity.slot.0, is_encrypted, "link to another host up");
    if let Err(error) = watched {
        state.remove_stream(id, "it cannot be watched");
        return Err(error.into());
    }
    let mut slots = vec![identity.slot, slot];
    // Another thread calls the process by these.
    slots.extend(further.iter().filter(|one| one.0 == (host, identity)).map(|one| one.1));
    slots.sort_unstable_by_key(|one| (*one != identity.slot, one.0));
    slots.dedup();
    for slot in slots {
        state.engine.handle_link_up(PeerId { host, slot }, id, None);
    }
    state.engine.handle_link_route(id, from, to);
    state.progress();
    state.wake_agent();
    Ok(())
}
