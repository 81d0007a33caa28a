//! Getting to know other processes: each handshake blocks, so it has a short-lived thread of its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{Node, agent, epoll};
use crate::engine::{Area, DIRECTORY_LEN, Slot};
use crate::link::handshake::{self, Established, Local, Refusal};
use crate::link::{slot, trust};
use crate::log::remark;

/// The longest that either side waits for the other in one step.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many peers may be in the middle of connecting to us; the others wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 16;
/// So many are let in, or turned away, before the agent looks after other things.
const ADMISSIONS: usize = 64;

static HANDSHAKES: AtomicUsize = AtomicUsize::new(0);

/// Connects to the process with a slot, and tells the engine how it went.
pub(super) fn dial(node: &'static Node, slot: Slot) {
    let started = spawn("rdma-soft-dial", move || {
        let result = reach(node, slot).map(prove);
        let result = result.and_then(|up| if up.peer.slots.contains(&slot) { Ok(up) } else { Err(Refusal::Nobody) });
        if let Err(refusal) = result.and_then(|up| Ok(add(node, up)?)) {
            give_up(node, slot);
            match refusal {
                Refusal::Nobody => remark!(DEBUG, slot = slot.0, "{refusal}"),
                _ => remark!(WARN, slot = slot.0, "no link to process number {}: {refusal}", slot.0),
            }
        }
    });
    if let Err(error) = started {
        give_up(node, slot);
        remark!(WARN, %error, "no thread to connect to a peer");
    }
}

/// Tells the engine that a process cannot be reached.
fn give_up(node: &Node, slot: Slot) {
    let mut state = node.lock();
    state.engine.handle_unreachable(slot);
    state.after_call();
}

/// A link to the process with a slot. One that is stopped is waited for, as if there were a link already; one that runs and
/// does not answer counts as unreachable.
fn reach(node: &Node, slot: Slot) -> Result<Established, Refusal> {
    loop {
        let socket = slot::connect(slot, PATIENCE)?;
        let pid = trust::peer_of(&socket)?.pid;
        match handshake::open(socket, &node.local()) {
            Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::WouldBlock && trust::is_stopped(pid) => {
                while trust::is_stopped(pid) {
                    thread::sleep(Duration::from_millis(100));
                }
            }
            result => return result,
        }
    }
}

/// Takes in the peers that wait at one of our slots.
pub(super) fn accept(node: &'static Node, index: u32) {
    for _ in 0..ADMISSIONS {
        if HANDSHAKES.load(Ordering::Relaxed) >= MAX_HANDSHAKES {
            break;
        }
        let accepted = {
            let listeners = node.listeners();
            let Some(listener) = listeners.get(index as usize) else { return };
            slot::accept(listener, PATIENCE)
        };
        let socket = match accepted {
            Ok(socket) => socket,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    remark!(WARN, %error, "a peer cannot be let in");
                    // Out of descriptors, most likely: the peer waits in the queue, and asking again at once is no use.
                    thread::sleep(Duration::from_millis(10));
                }
                break;
            }
        };
        if let Err(refusal) = handshake::screen(&socket) {
            remark!(WARN, "a process was not let in: {refusal}");
            continue;
        }
        let seat = Seat::take(node);
        let started = spawn("rdma-soft-accept", move || {
            greet(node, socket);
            drop(seat);
        });
        if let Err(error) = started {
            remark!(WARN, %error, "no thread to let a peer in");
            break;
        }
    }
    if HANDSHAKES.load(Ordering::Relaxed) < MAX_HANDSHAKES {
        rearm_all(node);
    }
}

/// One of the handshakes that peers may be in the middle of.
struct Seat(&'static Node);

impl Seat {
    fn take(node: &'static Node) -> Self {
        HANDSHAKES.fetch_add(1, Ordering::Relaxed);
        Self(node)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        HANDSHAKES.fetch_sub(1, Ordering::Relaxed);
        // There may be peers who found the house full.
        rearm_all(self.0);
    }
}

fn greet(node: &'static Node, socket: OwnedFd) {
    let result = handshake::accept(socket, &node.local()).map(prove).and_then(|up| Ok(add(node, up)?));
    match result {
        Ok(()) => {}
        // Somebody looked whether we are there.
        Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(refusal) => remark!(WARN, "a process was not let in: {refusal}"),
    }
}

fn rearm_all(node: &Node) {
    for (index, listener) in (0..).zip(node.listeners().iter()) {
        let result = node.epoll.rearm(listener.socket.as_fd(), epoll::Source::Listener(index), libc::EPOLLONESHOT);
        debug_assert!(result.is_ok(), "a listener that is not watched");
    }
}

/// Leaves a peer those slots that it has indeed; the kernel knows who listens there. Who could take another's could speak
/// for that one.
fn prove(mut up: Established) -> Established {
    let owner = |slot| slot::connect(slot, PATIENCE).and_then(|socket| trust::peer_of(&socket));
    let pid = up.peer.pid;
    up.peer.slots.retain(|slot| slot.is_real() && owner(*slot).is_ok_and(|owner| owner.pid == pid));
    up
}

/// Takes a new link into use.
fn add(node: &Node, up: Established) -> io::Result<()> {
    let Established { ends, peer } = up;
    let pid = peer.pid;
    let slots = peer.slots.clone();
    let shown = slots.clone();
    remark!(DEBUG, pid, slots = ?shown, "link up");
    let directory = Arc::clone(&peer.directory);
    let mut state = node.lock();
    let id = state.add_link(ends, Some(peer));
    if let Some(link) = state.link(id) {
        if let Err(error) = agent::watch(node, link) {
            state.remove_link(id, "it cannot be watched");
            return Err(error);
        }
    }
    // A process that had fewer slots when we first met may use its new ones on the old link.
    let others = state.links().filter(|link| link.id != id && link.peer.as_ref().is_some_and(|peer| peer.pid == pid));
    let others: Vec<_> = others.map(|link| link.id).collect();
    for slot in slots {
        // SAFETY: the mapping is DIRECTORY_LEN bytes, page aligned, readable and writable as long as its owner lives;
        // only the engine touches it.
        let area = unsafe { Area::new(directory.as_ptr(), DIRECTORY_LEN, Arc::clone(&directory) as _) };
        state.engine.handle_link_up(slot, id, Some(area));
        for &other in &others {
            state.engine.handle_link_up(slot, other, None);
        }
    }
    state.progress();
    // It may have died meanwhile, and its other links be gone. What it had sent is taken in.
    if state.link(id).and_then(|link| link.peer.as_ref()).is_some_and(|peer| trust::has_died(&peer.pidfd)) {
        state.drain_fully();
        state.end_link(id, "the peer has died");
        state.after_call();
    }
    // The peer does not know yet whether to ring.
    state.wake_agent();
    Ok(())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).stack_size(agent::STACK).spawn(body).map(drop)
}

impl Node {
    /// What this process brings into a handshake.
    fn local(&self) -> Local<'_> {
        let (slots, capacity) = {
            let state = self.lock();
            (state.slots().to_vec(), state.ring_capacity())
        };
        Local { slots, bell: self.bell.as_fd(), directory: &self.directory, capacity }
    }
}
