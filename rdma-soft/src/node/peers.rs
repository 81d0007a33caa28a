//! Set-up of links to other processes. Each handshake waits for the peer, so it has a short-lived
//! thread of its own.
//!
//! Two processes share one link. Either process may begin a handshake at any time. If both begin at
//! once, the process with the lower slot goes on as the opener, and the other process waits until
//! the link exists.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::callers;
use super::device::{Node, Who};
use super::meeting::{Meeting, give_up};
use super::source::Source;
use crate::engine::{Area, DIRECTORY_LEN, PeerId, Slot};
use crate::link::handshake::{self, Answer, Established, Opened, PATIENCE, Refusal};
use crate::link::slot;
use crate::link::wire::{Error, Kind};
use crate::log::log;
use crate::os::socket::Socket;
use crate::os::{process, thread};

/// Limit of concurrent handshakes that peers began; further peers wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 16;
/// Limit of the peers accepted or refused before the agent handles other events.
const ADMISSIONS: usize = 64;
/// Delay before a process asks a peer again that has answered `Busy`.
const BUSY: Duration = Duration::from_millis(2);

/// Connects to the process with a slot in a thread, and tells the engine if that fails.
pub(super) fn dial(node: &'static Node, slot: Slot) {
    let started = thread::spawn("rdma-soft-dial", move || {
        let mut pid = None;
        if let Err(refusal) = reach(node, slot, &mut pid) {
            // First the reason: a program that learns of the failure may look for it.
            log!(WARN, pid, "no link to process number {}: {refusal}", slot.0);
            give_up(node, PeerId::local(slot));
        }
    });
    if let Err(error) = started {
        give_up(node, PeerId::local(slot));
        log!(WARN, "no link to process number {}: no thread can be started for it: {error}", slot.0);
    }
}

/// Sets up a link to the process with a slot, and says which process that is. Waits for a stopped
/// process without limit, as an existing link would; a running process that does not answer counts
/// as unreachable.
fn reach(node: &'static Node, slot: Slot, found: &mut Option<i32>) -> Result<(), Refusal> {
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let socket = slot::connect(slot, PATIENCE)?;
        let pid = socket.peer()?.pid;
        *found = Some(pid);
        match open(node, slot, socket, pid) {
            Ok(true) => return Ok(()),
            Ok(false) if Instant::now() < deadline => sleep(BUSY),
            Ok(false) => return Err(Refusal::Silent),
            Err(Refusal::Silent) if process::is_stopped(pid) => {
                while process::is_stopped(pid) {
                    sleep(Duration::from_millis(100));
                }
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

/// Sets up a link to the process that listens at a slot, over a socket that is connected to that
/// process. False if the process has another handshake with this one under way, or has not noticed
/// yet that the last link has ended.
fn open(node: &'static Node, slot: Slot, socket: Socket, pid: i32) -> Result<bool, Refusal> {
    let Some(_meeting) = Meeting::open(node, Who::Near(pid), |state| state.link_to(pid).is_some()) else {
        return Ok(learn(node, pid, vec![slot]));
    };
    match handshake::open(socket, &node.local())? {
        Opened::New(up) => {
            let up = prove(*up);
            if !up.peer.slots.contains(&slot) {
                return Err(Refusal::Nobody);
            }
            add(node, up).map(|()| true)
        }
        Opened::Known(mut slots) => {
            slots.retain(|other| *other != slot && is_proved(pid, *other));
            slots.push(slot);
            Ok(learn(node, pid, slots))
        }
        Opened::Busy => Ok(false),
    }
}

/// Accepts the peers that wait at one of this process's slots.
pub(super) fn accept(node: &'static Node, index: u32) {
    let has_room = || node.meetings.accepting.load(Ordering::Relaxed) < MAX_HANDSHAKES;
    for _ in 0..ADMISSIONS {
        if !has_room() {
            break;
        }
        let accepted = {
            let listeners = node.listeners.lock();
            let Some(listener) = listeners.get(index as usize) else { return };
            listener.socket.accept()
        };
        let socket = match accepted {
            Ok(socket) => socket,
            Err(error) => {
                if error.errno != Errno::EAGAIN {
                    log!(WARN, %error, "a peer cannot be let in");
                    // Most likely this process is out of descriptors. The peer waits in the
                    // kernel's queue, and an immediate retry would fail again.
                    sleep(Duration::from_millis(10));
                }
                break;
            }
        };
        let pid = socket.peer().ok().map(|peer| peer.pid);
        if let Err(refusal) = handshake::screen(&socket) {
            log!(WARN, pid, "a process was not let in: {refusal}");
            continue;
        }
        let seat = Seat::take(node);
        let started = thread::spawn("rdma-soft-accept", move || {
            match greet(node, socket, seat) {
                Ok(()) => {}
                // The peer only checked that this process listens (see `is_proved`).
                Err(Refusal::Packet(Error::HungUp)) => {}
                Err(refusal) => log!(WARN, pid, "a process was not let in: {refusal}"),
            }
        });
        if let Err(error) = started {
            log!(WARN, %error, "no thread to let a peer in");
            break;
        }
    }
    if has_room() {
        rearm_all(node);
    }
}

/// One of the `MAX_HANDSHAKES` concurrent handshakes that peers may begin.
struct Seat(&'static Node);

impl Seat {
    fn take(node: &'static Node) -> Self {
        node.meetings.accepting.fetch_add(1, Ordering::Relaxed);
        Self(node)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.meetings.accepting.fetch_sub(1, Ordering::Relaxed);
        // Peers may be waiting for the seat.
        rearm_all(self.0);
    }
}

fn greet(node: &'static Node, socket: Socket, seat: Seat) -> Result<(), Refusal> {
    let first = handshake::receive(&socket)?;
    if first.kind == Kind::Caller as u32 {
        // A stranger of another host must not take a place that processes of this host need.
        drop(seat);
        callers::take_over(node, socket, first);
        return Ok(());
    }
    let (mut meeting, mut known) = (None, None);
    let accepted = handshake::accept(socket, first, &node.local(), |pid, slots| {
        let (answer, ours) = Meeting::accept(
            node,
            Who::Near(pid),
            |state| state.link_to(pid).is_some(),
            |state| state.slots().first() < slots.first(),
        );
        meeting = ours;
        known = (answer == Answer::Known).then(|| (pid, slots.to_vec()));
        answer
    });
    if let Some((pid, mut slots)) = known {
        slots.retain(|slot| is_proved(pid, *slot));
        learn(node, pid, slots);
    }
    let Some(up) = accepted?.map(prove) else { return Ok(()) };
    if up.peer.slots.is_empty() {
        return Err(Refusal::Packet(Error::Malformed("the peer has none of the numbers that it claims")));
    }
    add(node, up)
}

fn rearm_all(node: &Node) {
    for (index, listener) in (0..).zip(node.listeners.lock().iter()) {
        let rearmed = node.event_loop.rearm(&listener.socket, Source::Listener(index).token());
        debug_assert!(rearmed.is_ok(), "a listener that is not watched");
    }
}

/// Whether the kernel confirms that a process listens at a slot. A process that could claim
/// another's slot could send in its name.
fn is_proved(pid: i32, slot: Slot) -> bool {
    let owner = || slot::connect(slot, PATIENCE)?.peer();
    slot.is_real() && owner().is_ok_and(|owner| owner.pid == pid)
}

/// Keeps only the slots that the kernel confirms the peer owns.
fn prove(mut up: Established) -> Established {
    let pid = up.peer.pid;
    up.peer.slots.retain(|slot| is_proved(pid, *slot));
    up
}

/// Uses the link to a process for more of its slots, which are confirmed. False if there is no
/// link.
fn learn(node: &Node, pid: i32, slots: Vec<Slot>) -> bool {
    let mut state = node.lock();
    let Some(id) = state.link_to(pid) else { return false };
    for slot in slots {
        state.engine.handle_link_up(PeerId::local(slot), id, None);
    }
    state.after_call();
    true
}

/// Adds a new link to the node and tells the engine.
fn add(node: &Node, up: Established) -> Result<(), Refusal> {
    let Established { ends, peer } = up;
    let pid = peer.pid;
    let slots = peer.slots.clone();
    let directory = Arc::clone(&peer.directory);
    let mut state = node.lock();
    if state.link_to(pid).is_some() {
        // A process that keeps to the protocol does not open a second link.
        return Err(Refusal::Packet(Error::Malformed("the peer has a link already")));
    }
    let shown = slots.clone();
    log!(DEBUG, pid, slots = ?shown, "link up");
    let link = state.add_peer(ends, peer);
    let (id, watched) = (link.id, node.watch(link));
    if let Err(error) = watched {
        state.remove_link(id, "it cannot be watched");
        return Err(error.into());
    }
    for slot in slots {
        // SAFETY: Area::new requires mapped, readable and writable bytes for the life of the owner,
        // accessed only atomically in this process: the mapping is DIRECTORY_LEN bytes that live as
        // long as the owner, and only the engine accesses them.
        let area = unsafe { Area::new(directory.as_ptr(), DIRECTORY_LEN, Arc::clone(&directory) as _) };
        state.engine.handle_link_up(PeerId::local(slot), id, Some(area));
    }
    state.progress();
    // The sleep flag of the new link is not set yet, even if the agent sleeps: the agent's next
    // turn sets it.
    state.wake_agent();
    Ok(())
}
