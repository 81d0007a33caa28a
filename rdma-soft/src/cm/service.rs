//! The process's connection manager: every id's entry, every socket, the timers, and the thread
//! that looks after them.
//!
//! All state is under one lock, which is never held while anything waits. Calls of the application
//! change it directly; the thread handles messages of other processes and the clock.
//! Invariants:
//!
//! 1. An id or a silent connection has one socket that is watched, under its key, and is not
//!    watched any more when it is closed. No key is used twice; what comes for a key that is gone
//!    is dropped.
//! 2. `deadlines` has the deadlines of entries and of silent connections, and may have some that
//!    are over.
//! 3. Lock order: this lock, then the lock of an event queue. No callback runs under either.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno as SystemErrno;

use super::channel::{Channel, Target};
use super::entry::{Entry, Link, Role};
use super::machine::{Machine, Timers};
use super::message::{Message, Req, SidrReq};
use super::{port, report};
use crate::engine::{Errno, Time};
use crate::log::log;
use crate::os::event_loop::EventLoop;
use crate::os::fork::PerProcess;
use crate::os::socket::{Received, Socket};
use crate::os::{self, now};

/// Packets taken from one socket, and connections from one listener, before others have their turn.
const TURN: usize = 32;
/// Connections that have not said anything yet; the oldest makes room for the newest.
const MAX_SILENT: usize = 256;
/// How long a connection may say nothing.
const SILENCE: u64 = 10_000_000_000;
/// How long a listener rests when the process has no descriptor left.
const REST: u64 = 100_000_000;

static SERVICE: PerProcess<Service> = PerProcess::new();

/// The connection manager of this process.
#[derive(Debug)]
pub(super) struct Service {
    state: Mutex<State>,
    event_loop: Arc<EventLoop>,
}

/// A connection that was accepted for a listener and has not said anything yet.
#[derive(Debug)]
struct Silent {
    listener: u64,
    socket: Socket,
    deadline: Time,
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) entries: HashMap<u64, Entry>,
    pub(super) timers: Timers,
    /// Oldest first.
    silent: BTreeMap<u64, Silent>,
    deadlines: BTreeSet<(Time, u64)>,
    next: u64,
    event_loop: Arc<EventLoop>,
    /// When the thread's alarm goes off.
    alarm: Time,
}

impl Service {
    /// The manager, started by the first call. A forked child has one of its own.
    ///
    /// # Errors
    ///
    /// The device or the manager's thread cannot be started.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        if let Some(service) = SERVICE.get() {
            return Ok(service);
        }
        // First: no lock is taken in a step.
        super::device::open()?;
        SERVICE.get_or_make(|| {
            let service: &Self = Box::leak(Box::new(Self::new()?));
            os::thread::spawn_loop("rdma-soft-cm", || service.turn())?;
            Ok(service)
        })
    }

    fn new() -> os::Result<Self> {
        let event_loop = Arc::new(EventLoop::new()?);
        let state = State {
            entries: HashMap::new(),
            timers: timers(),
            silent: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next: 1,
            event_loop: Arc::clone(&event_loop),
            alarm: Time(u64::MAX),
        };
        Ok(Self { state: Mutex::new(state), event_loop })
    }

    /// Does something with the state.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        state.set_alarm();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) {
        {
            let mut state = self.lock();
            state.run_timers(now());
            state.alarm = Time(u64::MAX);
            state.set_alarm();
        }
        self.event_loop.wait(None, |token| self.with(|state| state.on_ready(token)));
    }
}

impl State {
    /// A key that nothing else has.
    pub(super) fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn entry(&mut self, key: u64) -> Result<&mut Entry, Errno> {
        self.entries.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// Watches a socket. Fails only for want of kernel memory.
    pub(super) fn watch(&self, key: u64, socket: &Socket) -> os::Result<()> {
        self.event_loop.watch(socket, key)
    }

    /// Stops watching a socket, which is closed next. Closing is not enough: a forked child may
    /// have it for a moment.
    pub(super) fn unwatch(&self, socket: &Socket) {
        self.event_loop.forget(socket);
    }

    /// Ends the silent connections of a listener.
    pub(super) fn drop_silent(&mut self, key: u64) {
        let of_listener = self.silent.iter().filter(|(_, silent)| silent.listener == key);
        for key in of_listener.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end_silent(key);
        }
    }

    fn end_silent(&mut self, key: u64) -> Option<(u64, Socket)> {
        let Silent { listener, socket, deadline } = self.silent.remove(&key)?;
        self.deadlines.remove(&(deadline, key));
        self.unwatch(&socket);
        Some((listener, socket))
    }

    /// Keeps the set of deadlines as the entries have them. `before` is the entry's deadline so
    /// far.
    pub(super) fn reschedule(&mut self, key: u64, before: Option<Time>) {
        let after = self.entries.get(&key).and_then(Entry::deadline);
        if before != after {
            self.deadlines.extend(after.map(|time| (time, key)));
            if let Some(time) = before {
                self.deadlines.remove(&(time, key));
            }
        }
    }

    /// Has the thread look when the next deadline is due.
    fn set_alarm(&mut self) {
        if let Some((next, _)) = self.deadlines.first().copied().filter(|(next, _)| *next < self.alarm) {
            self.alarm = next;
            self.event_loop.set_alarm(next);
        }
    }

    fn run_timers(&mut self, now: Time) {
        while let Some((time, key)) = self.deadlines.first().copied().filter(|(time, _)| *time <= now) {
            // Out of the set first: an entry that keeps its deadline must not
            // stop the others.
            self.deadlines.remove(&(time, key));
            drop(self.end_silent(key));
            self.rest(key, None);
            self.step(key, |machine, out| machine.on_time(now, out));
            if self.entries.get(&key).and_then(Entry::deadline) == Some(time) {
                self.deadlines.insert((now.after(1_000_000), key));
            }
        }
    }

    fn on_ready(&mut self, key: u64) {
        match self.entries.get(&key).map(|entry| &entry.role) {
            Some(Role::Listening { .. }) => self.accept(key),
            Some(_) => self.receive(key),
            None => self.hear(key),
        }
    }

    /// Has a listener rest until there may be descriptors again, or ends its rest.
    fn rest(&mut self, key: u64, until: Option<Time>) {
        let Some(Entry { role: Role::Listening { bound, rests, .. }, .. }) = self.entries.get_mut(&key) else { return };
        let watched = match until {
            Some(_) => {
                self.event_loop.forget(&bound.socket);
                Ok(())
            }
            None if rests.is_some() => self.event_loop.watch(&bound.socket, key),
            None => return,
        };
        *rests = if watched.is_ok() { until } else { Some(now().after(REST)) };
        self.deadlines.extend(rests.map(|until| (until, key)));
    }

    /// Takes the connections that wait at a listener.
    fn accept(&mut self, key: u64) {
        for _ in 0..TURN {
            let Some(listening) = self.entries.get(&key).and_then(Entry::listening) else { return };
            let socket = match listening.accept() {
                Ok(socket) => socket,
                Err(error) => {
                    use SystemErrno::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
                    if matches!(error.errno, EMFILE | ENFILE | ENOBUFS | ENOMEM) {
                        log!(WARN, %error, "soft0: a listener cannot take a connection now");
                        self.rest(key, Some(now().after(REST)));
                    }
                    return;
                }
            };
            match socket.peer() {
                Ok(peer) if peer.is_own_user() => {}
                Ok(peer) => {
                    log!(DEBUG, ?peer, "soft0: a process of another user may not connect");
                    continue;
                }
                Err(_) => continue,
            }
            if self.silent.len() >= MAX_SILENT {
                let oldest = self.silent.first_key_value().map(|(key, _)| *key);
                drop(oldest.and_then(|oldest| self.end_silent(oldest)));
            }
            let (new, deadline) = (self.new_key(), now().after(SILENCE));
            if self.watch(new, &socket).is_ok() {
                self.silent.insert(new, Silent { listener: key, socket, deadline });
                self.deadlines.insert((deadline, new));
                // As a rule the request is there already.
                self.hear(new);
            }
        }
    }

    /// Takes the first packet of a connection.
    fn hear(&mut self, key: u64) {
        let Some(silent) = self.silent.get(&key) else { return };
        let received = match silent.socket.receive() {
            Err(error) if error.errno == SystemErrno::EAGAIN => return,
            received => received,
        };
        let Some((listener, socket)) = self.end_silent(key) else { return };
        let message = match received {
            Ok(Received::Packet(packet)) => Message::decode(&packet.bytes),
            _ => None,
        };
        match message {
            Some(message) => self.requested(listener, socket, message),
            None => log!(DEBUG, "soft0: a connection ends before a request"),
        }
    }

    /// A request has come to a listener over a connection of its own.
    fn requested(&mut self, listener: u64, socket: Socket, message: Message) {
        let Ok(asked) = self.entry(listener) else { return };
        let (source, destination) = match &message {
            Message::Req(Req { source, destination, .. }) => (*source, *destination),
            Message::SidrReq(SidrReq { source, destination, .. }) => (*source, *destination),
            _ => return,
        };
        let name = socket.peer_name().and_then(|name| port::parse(&name));
        let is_datagram = matches!(message, Message::SidrReq(_));
        if !asked.admits(is_datagram, &source, &destination, name) {
            log!(DEBUG, %source, %destination, "soft0: a request that its sender cannot make");
            return;
        }
        if !asked.has_room() {
            // As good as lost: the peer asks again.
            let _gone = socket.send(&Message::Busy.encode());
            return;
        }
        let (channel, space, qp_type) = (Arc::clone(&asked.channel), asked.space, asked.qp_type);
        let (options, target) = (asked.inherited(), Arc::clone(&asked.target));
        let machine = Machine::asked(self.timers, &message);
        let key = self.new_key();
        if self.watch(key, &socket).is_err() {
            return;
        }
        let id = Target::new(key);
        let entry = Entry {
            local: Some(destination),
            peer: Some(source),
            role: Role::Connected { machine, link: Link::Up(socket) },
            options,
            ..Entry::new(Arc::clone(&id), Arc::clone(&channel), space, qp_type)
        };
        self.entries.insert(key, entry);
        if let Ok(asked) = self.entry(listener) {
            asked.count_request(1);
        }
        channel.push(report::request(target, id, message));
    }

    /// Handles the messages that a connection's peer has sent.
    pub(super) fn receive(&mut self, key: u64) {
        for _ in 0..TURN {
            let Some(socket) = self.entries.get(&key).and_then(Entry::connected) else { return };
            let received = match socket.receive() {
                Ok(received) => received,
                Err(error) if error.errno == SystemErrno::EAGAIN => return,
                // Said once where the peer has closed without having read everything; what it had
                // sent is still there.
                Err(error) if error.errno == SystemErrno::ECONNRESET => continue,
                Err(_) => Received::End,
            };
            let now = now();
            match received {
                Received::Packet(packet) => match Message::decode(&packet.bytes) {
                    Some(message) => self.step(key, |machine, out| machine.on_message(message, now, out)),
                    None => self.step(key, |machine, out| machine.on_garbage(now, out)),
                },
                Received::TooLong => self.step(key, |machine, out| machine.on_garbage(now, out)),
                Received::End => {
                    self.hang_up(key);
                    self.step(key, |machine, out| machine.on_hangup(now, out));
                    return;
                }
            }
        }
    }
}

/// Linux's, unless the environment has a shorter time for an answer (milliseconds); the others then
/// shrink with it.
fn timers() -> Timers {
    let millis = std::env::var("RDMA_SOFT_CM_TIMEOUT").ok().and_then(|millis| millis.parse::<u64>().ok());
    let millis = millis.filter(|millis| (1..=60_000).contains(millis));
    millis.map_or(Timers::LINUX, |millis| Timers::for_response(millis * 1_000_000))
}

/// Queues nothing on a channel that is closing: its ids are ended.
pub(super) fn end_channel(channel: &Arc<Channel>) -> Result<(), Errno> {
    Service::get()?.with(|state| {
        let of_channel = |entry: &Entry| Arc::ptr_eq(&entry.channel, channel);
        let keys: Vec<u64> = state.entries.iter().filter(|(_, entry)| of_channel(entry)).map(|(&key, _)| key).collect();
        for key in keys {
            state.destroy(key);
        }
    });
    Ok(())
}
