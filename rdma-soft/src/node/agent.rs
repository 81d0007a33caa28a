//! The agent: the thread that does the device's work while the application does something else.
//!
//! The agent sleeps in `epoll_wait` on its waker, its timer, the listening sockets, the links'
//! bells and sockets, the connections to other hosts, and the peers' pidfds. While the application
//! polls, the agent only looks in once a millisecond, to notice the end of the polling; peers do
//! not ring meanwhile, and arrivals from other hosts do not wake it. While a thread waits for an
//! event (`waiter`), bells wake that thread.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rdma_mem::Mapping;

use super::device::Node;
use super::source::Source;
use super::state::{Agent, State, TICK};
use super::{callers, groups, peers};
use crate::engine::{Area, Grant, Host, LinkId, Lookup};
use crate::link::Link;
use crate::link::handshake::Refusal;
use crate::link::wire::{self, Body, Error, Kind};
use crate::log::{self, log};
use crate::os;
use crate::threads;

/// Limit of the packets received from one link before other sources get their turn.
const PACKETS: usize = 16;

/// Starts the agent.
pub(super) fn start(node: &'static Node) -> os::Result<()> {
    let (mut polls_before, mut is_rung) = (0, false);
    threads::spawn_loop("rdma-soft", move || {
        log::emit_deferred();
        let (mut wait, naps) = take_turn(node, &mut polls_before, core::mem::take(&mut is_rung));
        if naps {
            node.event_loop.nap(TICK);
            wait = Some(Duration::ZERO);
        }
        node.event_loop.wait(wait, |token| is_rung |= handle(node, Source::of(token)));
    })
}

/// Takes one turn, and returns how long to wait for events; `None` means without a limit. And
/// whether to nap first.
fn take_turn(node: &'static Node, polls_before: &mut u64, is_rung: bool) -> (Option<Duration>, bool) {
    let (wait, naps, wakers, lookups, grants, unmapped) = {
        let mut state = node.lock();
        state.begin_agent_turn();
        let more = state.work_for_agent();
        let care = state.look_after_streams();
        let lookups = core::mem::take(&mut state.lookups);
        let grants = core::mem::take(&mut state.grants);
        let unmapped = state.engine.take_unmapped();
        let polls = state.polls;
        // A peer that rings has noticed that the application no longer polls.
        let polling = polls != *polls_before && state.is_polled() && !is_rung;
        *polls_before = polls;
        let wait = fall_asleep(&mut state, polling, more).or(care);
        (wait, state.may_nap(), state.end_agent_turn(), lookups, grants, unmapped)
    };
    wakers.into_iter().for_each(Waker::wake);
    drop(unmapped);
    let mut groups = Vec::new();
    for lookup in lookups {
        match lookup {
            Lookup::Link(peer) if peer.host == Host::LOCAL => peers::dial(node, peer.slot),
            Lookup::Link(peer) => callers::dial(node, peer),
            Lookup::Members(gid) => groups.push(gid),
        }
    }
    if !groups.is_empty() {
        groups::look_up(node, &groups);
    }
    for grant in grants {
        send_grant(node, &grant);
    }
    (wait, naps)
}

fn fall_asleep(state: &mut State, polling: bool, more: bool) -> Option<Duration> {
    if polling {
        state.disarm();
        state.agent = Agent::Ticking;
        return Some(TICK);
    }
    (more || state.fall_asleep()).then_some(Duration::ZERO)
}

/// Handles a descriptor that the event loop reports. True if a peer has rung.
fn handle(node: &'static Node, source: Source) -> bool {
    match source {
        Source::Listener(index) => peers::accept(node, index),
        Source::Bell => return true,
        Source::Stream => {}
        Source::Socket { link, generation } => return receive(node, link, generation),
        Source::Death { link, generation } => remove(node, link, generation, "the peer has died"),
    }
    false
}

/// Receives packets from a link's socket. If packets remain, the event loop reports the socket
/// again. True if one packet was a doorbell.
fn receive(node: &Node, id: LinkId, generation: u32) -> bool {
    let mut is_rung = false;
    for _ in 0..PACKETS {
        let result = {
            let state = node.lock();
            let Some(peer) = state.peer_of_generation(id, generation) else { return false };
            wire::receive(&peer.socket)
        };
        let why = match result {
            Ok(packet) if packet.kind == Kind::Doorbell as u32 => {
                is_rung = true;
                continue;
            }
            Ok(packet) if packet.kind == Kind::Grant as u32 => {
                take_grant(node, id, generation, packet);
                continue;
            }
            Ok(_) => "the peer does not keep to the protocol".to_owned(),
            Err(error) if error.is_empty() => break,
            Err(error) => error.to_string(),
        };
        remove(node, id, generation, &why);
        break;
    }
    is_rung
}

/// Maps a region that a peer has sent. Mapping takes long, so only a requested region is mapped.
fn take_grant(node: &Node, id: LinkId, generation: u32, mut packet: wire::Packet) {
    let rkey = packet.body.take_u64().ok().and_then(|key| u32::try_from(key).ok());
    let Some(rkey) = rkey.filter(|rkey| node.lock().engine.wants_mapping(id, *rkey)) else { return };
    match map_grant(&mut packet) {
        Ok(area) => {
            let mut state = node.lock();
            if state.peer_of_generation(id, generation).is_some() {
                state.engine.handle_mapping(id, rkey, area);
                state.after_call();
            }
        }
        // The link stays: operations on the region go through the ring instead.
        Err(error) => log!(WARN, %error, "a region of a peer cannot be mapped"),
    }
}

fn map_grant(packet: &mut wire::Packet) -> Result<Area, Refusal> {
    let offset = packet.body.take_u64()?;
    let len = packet.body.take_u64()?;
    let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
    let end = end.ok_or(Error::Malformed("a region beyond the address space"))?;
    let (offset, len) = (end - usize::try_from(len).unwrap_or(0), usize::try_from(len).unwrap_or(0));
    let fd = packet.fds.pop().ok_or(Error::Malformed("a region without a file"))?;
    let mapping = Arc::new(Mapping::map(fd.as_fd(), end)?);
    // SAFETY: `add` requires an offset within the mapping: `offset` is at most `end`, its length.
    let ptr = unsafe { mapping.as_ptr().add(offset) };
    // SAFETY: Area::new requires mapped, readable and writable bytes for the life of the owner,
    // accessed only atomically in this process: `len` bytes from `offset` are the end of the
    // mapping, which the owner keeps, and only the engine accesses them.
    Ok(unsafe { Area::new(ptr, len, mapping) })
}

/// Sends a region's file to the peer that requested it.
fn send_grant(node: &Node, grant: &Grant) {
    let state = node.lock();
    let Some(peer) = state.link(grant.link).and_then(Link::peer) else { return };
    let body = Body::default().u64(u64::from(grant.rkey)).u64(grant.offset).u64(grant.len as u64);
    if let Err(error) = peer.send_region(&body, grant.backing.fd()) {
        let pid = peer.pid;
        log!(DEBUG, %error, pid, "a region cannot be sent to its peer");
    }
}

/// Ends a link, after all frames that the peer had sent before are handled.
fn remove(node: &Node, id: LinkId, generation: u32, why: &str) {
    let mut state = node.lock();
    if state.peer_of_generation(id, generation).is_none() {
        return;
    }
    state.drain_fully();
    if state.peer_of_generation(id, generation).is_some() {
        state.remove_link(id, why);
    }
    state.after_call();
}
