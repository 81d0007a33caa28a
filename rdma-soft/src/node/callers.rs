//! Links to processes of other hosts: calls to them, and theirs to this process.
//!
//! Whoever accepts a call reads the first message, and passes the connection to the process with
//! the slot that the message names. Each step of a stranger has its own deadline, and the oldest of
//! too many strangers goes first.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::device::{Node, Who};
use super::meeting::{Meeting, give_up};
use super::ports;
use super::remote::{Opening, Remote, Stranger};
use super::source::Source;
use crate::engine::{Gid, PeerId, Slot};
use crate::link::handshake::{self, Answer};
use crate::link::hello::{self, First, HelloError, Opened, Purpose, Route};
use crate::link::hosts::HostUse;
use crate::link::slot;
use crate::link::stream::{Far, Stream};
use crate::link::tls::Records;
use crate::link::wire::{self, Body, Kind, Packet};
use crate::log::log;
use crate::os;
use crate::os::tcp::Tcp;
use crate::os::thread;

/// Limit of the threads that read first messages, and pass calls on or answer them. Each has four
/// steps at most, and each step ends after the [`PATIENCE`](hello::PATIENCE).
const MAX_CALLS: usize = 256;
/// Limit of the connections accepted before the agent handles other events.
const ADMISSIONS: usize = 64;
/// Delay before a process asks a peer again that has answered `Busy`.
const BUSY: Duration = Duration::from_millis(2);
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
    let us = remote.identity(node.lock().slots()[0]);
    let (purpose, protection) = (Purpose::Link, remote.protection);
    let first = First { purpose, protection, target: peer.slot, opener: us, nonce: opening.nonce };
    let (socket, Opened { acceptor: identity, answer, records }) =
        remote.call(address, &first, Instant::now() + CALL)?;
    match answer {
        Answer::Busy => Ok(false),
        Answer::Known => Ok(learn(node, PeerId { slot: identity.slot, ..peer }, peer.slot)),
        Answer::Welcome => {
            let Some(host) = host.take() else { return Err(HelloError::Malformed) };
            add(node, socket, records, Far { host, identity }, peer.slot).map(|()| true)
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
        // A process that stands still takes no calls: the threads that pass them on wait for it.
        let Some(call) = remote.call_begins(MAX_CALLS) else { continue };
        let stranger = Stranger::new(remote, socket);
        let started = thread::spawn("rdma-soft-call", move || {
            let _until_its_end = call;
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
    if let Purpose::Port(space, port) = first.purpose {
        return ports::pass(&stranger.socket, &first, space, port);
    }
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
        let stranger = Stranger::new(remote, Arc::new(Tcp::of_fd(fd)?));
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
    let called = socket.local()?;
    // Another process of this user may listen at another address, and speaks for that one alone.
    if (called.ip().to_canonical(), called.port()) != (remote.address.ip(), remote.address.port()) {
        return Err(HelloError::Nobody);
    }
    let route = Route { opener: address, acceptor: called.ip().to_canonical() };
    let us = remote.identity(node.lock().slots()[0]);
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
            |state| state.stream_to(peer).is_some_and(|(_, stream)| stream.far.identity == first.opener),
            |_| (remote.address.ip(), us.slot) < (address, peer.slot),
        );
        (meeting, host) = (ours, Some(held));
        Ok(answer)
    };
    let (answer, records) = hello::accept(&socket, remote.terms(), route, first, us, deadline, decide)?;
    let (Some(host), Answer::Welcome) = (host, answer) else { return Ok(()) };
    let socket = Arc::into_inner(socket).ok_or(HelloError::Malformed)?;
    let added = add(node, socket, records, Far { host, identity: first.opener }, first.opener.slot);
    drop(meeting);
    added
}

/// Uses the link to a process for one more of its slots. False if there is no link.
fn learn(node: &Node, process: PeerId, slot: Slot) -> bool {
    let mut state = node.lock();
    let Some((id, _)) = state.stream_to(process) else { return false };
    state.engine.handle_link_up(PeerId { slot, ..process }, id, None);
    state.after_call();
    true
}

/// Adds a new link to the node and tells the engine.
fn add(node: &Node, socket: Tcp, records: Option<Records>, far: Far, slot: Slot) -> Result<(), HelloError> {
    socket.prepare_for_frames()?;
    let [from, to] = [socket.peer()?, socket.local()?].map(|end| Gid::from_address(end.ip().to_canonical()));
    let (host, identity) = (far.host.id(), far.identity);
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
    for slot in if slot == identity.slot { vec![slot] } else { vec![identity.slot, slot] } {
        state.engine.handle_link_up(PeerId { host, slot }, id, None);
    }
    state.engine.handle_link_route(id, from, to);
    state.progress();
    state.wake_agent();
    Ok(())
}
