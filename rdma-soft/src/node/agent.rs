//! The agent: the thread that does the device's work while the application does something else.
//!
//! It sleeps in `epoll_wait` on the doorbell, the timer, the sockets where peers connect, and what tells of a peer's death.
//! While the application polls, the agent only looks in once a millisecond, to notice when it stops; peers do not
//! ring it then.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::{io, thread};

use rdma_mem::Mapping;

use super::state::{Agent, State};
use super::{Node, epoll, groups, peers};
use crate::engine::{Area, Grant, LinkId, Wish};
use crate::link::duplex::Link;
use crate::link::packet::{self, Body, Kind};
use crate::log::{self, remark};

/// How often the agent looks in while the application polls, in milliseconds.
const TICK: libc::c_int = 1;
/// So many polls since it last said that it would sleep, and the application is one that polls.
const POLLS_OF_A_POLLER: u64 = 16;
/// Stack of the agent and of the threads that it starts: enough for a subscriber of the log.
pub(crate) const STACK: usize = 256 << 10;

/// Starts the agent.
pub(super) fn start(node: &'static Node) -> io::Result<()> {
    let signals = BlockedSignals::new();
    let started = thread::Builder::new().name("rdma-soft".into()).stack_size(STACK).spawn(move || run(node));
    drop(signals);
    started.map(drop)
}

fn run(node: &'static Node) {
    let mut polls_before = 0;
    loop {
        log::say();
        let turn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let wait = take_turn(node, &mut polls_before);
            node.epoll.wait(wait, |source| handle(node, source));
        }));
        if turn.is_err() {
            // The panic has been reported by the hook. Going on serves the queue pairs that it did not concern.
            remark!(ERROR, "the software RDMA device's agent panicked; this is a defect of rdma-soft");
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Does what there is to do, and says how long to wait for more: in milliseconds, -1 for ever.
fn take_turn(node: &'static Node, polls_before: &mut u64) -> libc::c_int {
    let (wait, wishes, grants) = {
        let mut state = node.lock();
        state.agent = Agent::Awake;
        // First, as what it causes is sent and told below.
        state.run_timers();
        let more = state.progress();
        let wishes = core::mem::take(&mut state.wishes);
        let grants = core::mem::take(&mut state.grants);
        let polls = state.polls;
        let polling = polls != *polls_before && polls.wrapping_sub(state.polls_at_settle) >= POLLS_OF_A_POLLER;
        *polls_before = polls;
        (fall_asleep(&mut state, polling, more), wishes, grants)
    };
    let mut lookups = Vec::new();
    for wish in wishes {
        match wish {
            Wish::Link(slot) => peers::dial(node, slot),
            Wish::Members(gid) => lookups.push(gid),
        }
    }
    if !lookups.is_empty() {
        groups::look_up(node, &lookups);
    }
    for grant in grants {
        send_grant(node, &grant);
    }
    wait
}

fn fall_asleep(state: &mut State, polling: bool, more: bool) -> libc::c_int {
    if polling {
        state.disarm();
        state.agent = Agent::Ticking;
        return TICK;
    }
    if more || state.arm() {
        return 0;
    }
    state.agent = Agent::Asleep;
    -1
}

fn handle(node: &'static Node, source: epoll::Source) {
    match source {
        epoll::Source::Bell => epoll::drain(node.bell.as_fd()),
        epoll::Source::Timer => epoll::drain(node.timer.as_fd()),
        epoll::Source::Listener(index) => peers::accept(node, index),
        epoll::Source::Socket { link, generation } => receive(node, link, generation),
        epoll::Source::Death { link, generation } => remove(node, link, generation, "the peer has died"),
    }
}

/// Takes packets off a link's socket, without blocking.
fn receive(node: &Node, id: LinkId, generation: u32) {
    loop {
        let result = {
            let state = node.lock();
            let Some(peer) = state.link_of_generation(id, generation).and_then(|link| link.peer.as_ref()) else {
                return;
            };
            packet::receive(&peer.socket)
        };
        let mut packet = match result {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => return remove(node, id, generation, &error.to_string()),
        };
        if packet.kind != Kind::Grant as u32 {
            return remove(node, id, generation, "the peer does not keep to the protocol");
        }
        match map_grant(&mut packet) {
            Ok((rkey, area)) => {
                let mut state = node.lock();
                if state.link_of_generation(id, generation).is_some() {
                    state.engine.handle_mapping(id, rkey, area);
                    state.after_call();
                }
            }
            // Not worth a link: what could have been done directly goes through the ring.
            Err(error) => remark!(WARN, %error, "a region of a peer cannot be mapped"),
        }
    }
}

fn map_grant(packet: &mut packet::Packet) -> io::Result<(u32, Area)> {
    let rkey = u32::try_from(packet.body.take_u64()?).map_err(|_| packet::invalid("a key of too many bits"))?;
    let offset = packet.body.take_u64()?;
    let len = packet.body.take_u64()?;
    let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
    let end = end.ok_or_else(|| packet::invalid("a region beyond the address space"))?;
    let (offset, len) = (end - usize::try_from(len).unwrap_or(0), usize::try_from(len).unwrap_or(0));
    let fd = packet.fds.pop().ok_or_else(|| packet::invalid("a region without a file"))?;
    let mapping = Arc::new(Mapping::map(fd.as_fd(), end)?);
    // SAFETY: `offset` is at most `end`, the length of the mapping.
    let ptr = unsafe { mapping.as_ptr().add(offset) };
    // SAFETY: `len` bytes from `offset` are the end of the mapping, which the owner keeps, readable and writable;
    // only the engine knows of it.
    Ok((rkey, unsafe { Area::new(ptr, len, mapping) }))
}

/// Sends a region's file to the peer who asked for it.
fn send_grant(node: &Node, grant: &Grant) {
    let state = node.lock();
    let Some(peer) = state.link(grant.link).and_then(|link| link.peer.as_ref()) else { return };
    let body = Body::default().u64(u64::from(grant.rkey)).u64(grant.offset).u64(grant.len as u64);
    if let Err(error) = packet::send(&peer.socket, Kind::Grant, &body, &[grant.backing.fd()]) {
        let pid = peer.pid;
        remark!(DEBUG, %error, pid, "a region cannot be sent to its peer");
    }
}

/// Ends a link, once all that the peer had sent before is taken in.
fn remove(node: &Node, id: LinkId, generation: u32, why: &str) {
    let mut state = node.lock();
    if state.link_of_generation(id, generation).is_none() {
        return;
    }
    state.drain_fully();
    if state.link_of_generation(id, generation).is_some() {
        state.end_link(id, why);
    }
    state.after_call();
}

/// Watches a link's descriptors.
pub(super) fn watch(node: &Node, link: &Link) -> io::Result<()> {
    let Some(peer) = &link.peer else { return Ok(()) };
    let (id, generation) = (link.id, link.generation);
    node.epoll.add(peer.socket.as_fd(), epoll::Source::Socket { link: id, generation }, libc::EPOLLET)?;
    node.epoll.add(peer.pidfd.as_fd(), epoll::Source::Death { link: id, generation }, libc::EPOLLONESHOT)
}

/// All signals are blocked in this thread, and in threads that it starts, while this lives.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: sigset_t is plain data, valid when zero.
        let mut before: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: sigfillset writes one set to a live one.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: pthread_sigmask reads one set and writes another, both live.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: reads one set from a live one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut()) };
    }
}
