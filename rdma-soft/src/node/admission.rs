//! Lets in the callers of other hosts: accepts their connections, reads their first messages, and
//! passes each connection to the process that its caller names. One thread does that for all of
//! them and never waits for one; the handshake itself is `callers`'.
//!
//! A caller is a stranger until it has proved that it holds the key. Strangers have
//! [`MAX_STRANGERS`](super::remote::MAX_STRANGERS) places in each process. A stranger has 3 s to
//! say whom it calls; if others wait for its place, it goes after a moment, the oldest first. The
//! connections that have no place wait in the kernel's queue.
//!
//! A connection is passed on before its caller has proved anything, because the processes of an
//! address may hold different keys. It keeps its place here until the other process has given it
//! one of its own. A process that stands still has a few of them at most in its queue.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::callers;
use super::device::Node;
use super::ports;
use super::remote::{CALLER, DOOR, Remote, Stage, Stranger};
use crate::engine::Slot;
use crate::link::handshake;
use crate::link::hello::{self, First, HelloError, Incoming, Purpose};
use crate::link::port::Space;
use crate::link::slot;
use crate::link::wire::{self, Body, Kind};
use crate::os;
use crate::os::socket::Socket;
use crate::threads;

/// Limit of the connections in the queue of one process.
const MAX_UNTAKEN: usize = 8;
/// Pause before a connection is offered again to a process whose queue is full.
const PAUSE: Duration = Duration::from_millis(10);
/// Pause after a failure to accept a connection.
const LONG_PAUSE: Duration = Duration::from_millis(100);

/// The number of the first stranger. A stranger's number is its token in the event loop.
const FIRST_NUMBER: u64 = DOOR + 1;

/// A stranger, and how far it has got.
struct Place {
    stranger: Stranger,
    deadline: Instant,
    step: Step,
}

enum Step {
    /// Its first message has not come.
    Silent(Incoming),
    /// The process that it calls has a full queue.
    Queued(First),
    /// The connection is in the queue of a process, which hangs up once it has taken it.
    Given(Callee, Socket),
}

/// The process that a stranger calls: the one with a slot, or the listener at a port of the
/// connection manager.
type Callee = (Slot, Option<(Space, u16)>);

fn callee(first: &First) -> Callee {
    match first.purpose {
        Purpose::Port(space, port) => (first.target, Some((space, port))),
        Purpose::Link | Purpose::Confirm(_) => (first.target, None),
    }
}

/// The state of the thread.
struct Admission {
    node: &'static Node,
    remote: &'static Remote,
    /// The strangers by their numbers, so the oldest comes first.
    places: BTreeMap<u64, Place>,
    /// Connections that are still in the queues of processes, although their strangers' time is up.
    untaken: BTreeMap<u64, (Callee, Socket)>,
    next_number: u64,
    /// Callers wait in the kernel's queue.
    has_callers: bool,
    /// The event loop watches the listening socket.
    is_watching: bool,
}

/// Starts the thread, if this process listens for other hosts.
pub(super) fn start(node: &'static Node) -> os::Result<()> {
    let Some(remote) = &node.remote else { return Ok(()) };
    let mut admission = Admission {
        node,
        remote,
        places: BTreeMap::new(),
        untaken: BTreeMap::new(),
        next_number: FIRST_NUMBER,
        has_callers: false,
        is_watching: true,
    };
    threads::spawn_loop("rdma-soft-callers", move || admission.turn())
}

impl Admission {
    fn turn(&mut self) {
        self.end_late(Instant::now());
        self.offer_again();
        self.accept();
        self.watch_listener();
        let wait = self.wakes_at().map(|at| {
            // Rounded up: a wait of less than a millisecond would spin.
            at.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let mut ready = Vec::new();
        self.remote.event_loop.wait(wait, |token| ready.push(token));
        for token in ready {
            match token {
                CALLER => self.has_callers = true,
                DOOR => self.remote.shared.give(),
                number => self.advance(number),
            }
        }
    }

    /// When the next turn is due, if nothing happens before.
    fn wakes_at(&self) -> Option<Instant> {
        let deadlines = self.places.values().map(|place| match place.step {
            Step::Queued(_) => place.deadline.min(Instant::now() + PAUSE),
            _ => place.deadline,
        });
        let room = (self.has_callers || !self.is_watching).then(|| self.remote.has_room_at());
        deadlines.chain(room).chain(self.remote.tells_at()).min()
    }

    /// Accepts the connections for which there are places.
    fn accept(&mut self) {
        while self.has_callers && self.remote.has_room_at() <= Instant::now() {
            match self.remote.shared.listener.accept() {
                Ok(socket) => self.enter(Stranger::new(self.remote, Arc::new(socket))),
                Err(os::Error { errno: Errno::EAGAIN, .. }) => self.has_callers = false,
                // The caller has gone.
                Err(os::Error { errno: Errno::ECONNABORTED | Errno::EINTR, .. }) => {}
                Err(error) => {
                    // Most likely this process is out of descriptors. The caller waits in the
                    // kernel's queue, and an immediate retry would fail again.
                    self.remote.refused(&error.into());
                    sleep(LONG_PAUSE);
                    break;
                }
            }
        }
    }

    /// Watches the listening socket unless callers must wait for places here. Of the processes that
    /// watch the socket and sleep, the kernel wakes one for each caller, so those that come
    /// meanwhile reach the others.
    fn watch_listener(&mut self) {
        let (event_loop, listener) = (&self.remote.event_loop, &self.remote.shared.listener);
        let is_full = self.has_callers || self.remote.has_room_at() > Instant::now();
        match (is_full, self.is_watching) {
            (true, true) => event_loop.forget(listener),
            (false, false) if event_loop.watch_shared(listener, CALLER).is_err() => {
                // The kernel is out of memory: the next turn tries again.
                self.has_callers = true;
                return sleep(LONG_PAUSE);
            }
            _ => {}
        }
        self.is_watching = !is_full;
    }

    fn enter(&mut self, stranger: Stranger) {
        let number = self.next_number;
        self.next_number += 1;
        if let Err(error) = self.remote.event_loop.watch(&stranger.socket, number) {
            return self.remote.refused(&error.into());
        }
        let deadline = Instant::now() + hello::PATIENCE;
        self.places.insert(number, Place { stranger, deadline, step: Step::Silent(Incoming::new()) });
    }

    /// Handles what has happened to a stranger.
    fn advance(&mut self, number: u64) {
        if let Some((_, process)) = self.untaken.remove(&number) {
            return self.remote.event_loop.forget(&process);
        }
        let Some(mut place) = self.places.remove(&number) else { return };
        match &mut place.step {
            Step::Silent(incoming) => match incoming.read(&place.stranger.socket) {
                Ok(None) => drop(self.places.insert(number, place)),
                Ok(Some(first)) => {
                    self.remote.event_loop.forget(&place.stranger.socket);
                    self.pass(number, place, first);
                }
                Err(error) => {
                    self.remote.event_loop.forget(&place.stranger.socket);
                    self.remote.refused(&error);
                }
            },
            Step::Queued(_) => drop(self.places.insert(number, place)),
            // The process has taken the connection, or has died.
            Step::Given(_, process) => self.remote.event_loop.forget(process),
        }
    }

    /// Passes a connection to the process that its first message names.
    fn pass(&mut self, number: u64, place: Place, first: First) {
        let Place { stranger, deadline, .. } = place;
        if self.node.lock().slots().contains(&first.target) {
            return callers::meet_in_thread(self.node, self.remote, stranger, first, deadline);
        }
        // From now on the other process may answer the stranger.
        self.remote.goes_on(&stranger, Stage::Given);
        let step = match self.give(&stranger, &first, deadline) {
            Ok(Some(process)) => {
                if let Err(error) = self.remote.event_loop.watch(&process, number) {
                    return self.remote.refused(&error.into());
                }
                Step::Given(callee(&first), process)
            }
            Ok(None) => {
                self.remote.goes_on(&stranger, Stage::Unanswered);
                Step::Queued(first)
            }
            Err(error) => return self.remote.refused(&error),
        };
        self.places.insert(number, Place { stranger, deadline, step });
    }

    /// Puts a connection into the queue of the process that its first message names; `None` if that
    /// is full. Returns the socket on which that process hangs up.
    fn give(&self, stranger: &Stranger, first: &First, deadline: Instant) -> Result<Option<Socket>, HelloError> {
        let callee = callee(first);
        let given = self.places.values().filter(|place| matches!(place.step, Step::Given(to, _) if to == callee));
        let untaken = self.untaken.values().filter(|(to, _)| *to == callee);
        if given.count() + untaken.count() >= MAX_UNTAKEN {
            return Ok(None);
        }
        let process = match callee {
            (_, Some((space, port))) => ports::listener(&stranger.socket, space, port)?,
            (slot, None) => match slot::connect(slot, Duration::ZERO) {
                Ok(process) => process,
                Err(os::Error { errno: Errno::EAGAIN, .. }) => return Ok(None),
                Err(_) => return Err(HelloError::Nobody),
            },
        };
        // Only a process of this user gets the connection.
        handshake::screen(&process).map_err(|_| HelloError::Nobody)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let body = Body::default().bytes(&first.bytes()).u64(u64::try_from(left.as_millis()).unwrap_or(0));
        wire::send(&process, Kind::Caller, &body, &[stranger.socket.as_fd()])?;
        Ok(Some(process))
    }

    /// Offers the connections again that have found full queues.
    fn offer_again(&mut self) {
        let waits = |place: &Place| matches!(place.step, Step::Queued(_));
        let waiting: Vec<u64> =
            self.places.iter().filter(|(_, place)| waits(place)).map(|(number, _)| *number).collect();
        for number in waiting {
            if let Some(place) = self.places.remove(&number) {
                if let Step::Queued(first) = place.step {
                    self.pass(number, place, first);
                }
            }
        }
    }

    /// Ends the strangers whose time is up, or who have lost their places to others.
    fn end_late(&mut self, now: Instant) {
        self.remote.tell();
        let is_late = |place: &Place| place.deadline <= now || !self.remote.has_place(&place.stranger);
        let late: Vec<u64> =
            self.places.iter().filter(|(_, place)| is_late(place)).map(|(number, _)| *number).collect();
        for number in late {
            let Some(place) = self.places.remove(&number) else { continue };
            if let Step::Given(_, process) = &place.step {
                // The process may have taken the connection, of which this thread has not heard
                // yet: that is the process's now, and may be a link already.
                if process.wait_readable(Duration::ZERO).is_ok() {
                    self.remote.event_loop.forget(process);
                    continue;
                }
            } else {
                self.remote.event_loop.forget(&place.stranger.socket);
            }
            // The process that the stranger calls has had no time for it.
            if !matches!(place.step, Step::Silent(_)) {
                hello::tell_busy(&place.stranger.socket);
            }
            // Also for a process that takes the connection later.
            place.stranger.socket.shut_down();
            self.remote.refused(&HelloError::Late);
            if let Step::Given(to, process) = place.step {
                self.untaken.insert(number, (to, process));
            }
        }
    }
}
