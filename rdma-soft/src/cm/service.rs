//! The connection manager of a process: the entries of all ids, all sockets, the timers, and the
//! thread that serves them.
//!
//! All state is under one lock, and no thread blocks while it holds the lock. Calls of the
//! application change the state directly; the thread handles messages from other processes and the
//! timers. Invariants:
//!
//! 1. An id or a connection without an id has at most one watched socket, watched under its key,
//!    and the watch ends before the socket is closed. No key is used twice; readiness for a key
//!    that no longer exists is dropped.
//! 2. `deadlines` holds the deadlines of all entries and connections without ids, and possibly some
//!    outdated ones.
//! 3. Lock order: this lock, then the lock of an event queue. No callback runs under either lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno as SystemErrno;

use super::channel::{Channel, Target};
use super::entry::{Entry, Link, Role};
use super::machine::{Machine, Timers, reason, sidr};
use super::report;
use super::transport::{Dialler, Far, Origin, Transport};
use super::wire::{Message, Rej, Req, SidrRep, SidrReq};
use crate::engine::{Errno, Time};
use crate::link::hello::HelloError;
use crate::log::log;
use crate::node::ports::{Call, Caller};
use crate::os::event_loop::EventLoop;
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;
use crate::os::socket::{Received, Socket};
use crate::os::{self, now};
use crate::threads;

/// Most packets received from one socket, or connections accepted from one listener, in one turn.
const TURN: usize = 32;
/// Most connections without a request, and most that this side has ended; a new one replaces the
/// oldest of its kind.
const MAX_SILENT: usize = if cfg!(test) { 8 } else { 256 };
/// Time in which a connection must send its request; nanoseconds.
const SILENCE: u64 = 10_000_000_000;
/// Limit of the callers of other hosts that are proving that they hold the key: more than may be
/// strangers at a time, so that the oldest makes place for a new one.
const MAX_CALLERS: usize = 128;
/// Time in which the other side of a connection to another host must close it, too; nanoseconds.
const FAREWELL: u64 = 3_000_000_000;
/// Time for which a listener rests when the process has no free descriptor; nanoseconds.
const REST: u64 = 100_000_000;

static SERVICE: PerProcess<Service> = PerProcess::new();

/// The connection manager of this process.
#[derive(Debug)]
pub(super) struct Service {
    state: Lock<State>,
    event_loop: Arc<EventLoop>,
}

/// A connection without an id.
#[derive(Debug)]
struct Silent {
    /// The listener that accepted the connection, which has not sent a request yet. `None` if this
    /// side has sent all that it had to send: the other side's end follows.
    listener: Option<u64>,
    transport: Transport,
    deadline: Time,
}

/// The state under the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) entries: HashMap<u64, Entry>,
    pub(super) timers: Timers,
    /// Connections without an id by key, so the oldest is first.
    silent: BTreeMap<u64, Silent>,
    /// Counts the callers of other hosts that are proving that they hold the key.
    callers: Arc<()>,
    pub(super) dialler: Dialler,
    deadlines: BTreeSet<(Time, u64)>,
    next: u64,
    event_loop: Arc<EventLoop>,
    /// Time at which the thread's alarm is set to fire.
    alarm: Time,
    /// A descriptor that is open for no purpose but to be closed, so that connections can be
    /// refused when no other is left.
    spare: Option<Socket>,
}

impl Service {
    /// The connection manager, started by the first call. A forked child starts its own.
    ///
    /// # Errors
    ///
    /// The device or the connection manager's thread cannot be started.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        if let Some(service) = SERVICE.get() {
            return Ok(service);
        }
        // Opened before `get_or_make`, whose uninterrupted step (`os::fork`) must not wait for a
        // lock.
        super::device::open()?;
        SERVICE.get_or_make(|| {
            let service: &Self = Box::leak(Box::new(Self::new()?));
            threads::spawn_loop("rdma-soft-cm", || service.turn())?;
            Ok(service)
        })
    }

    fn new() -> os::Result<Self> {
        let event_loop = Arc::new(EventLoop::new()?);
        let state = State {
            entries: HashMap::new(),
            timers: timers(),
            silent: BTreeMap::new(),
            callers: Arc::default(),
            dialler: Dialler::default(),
            deadlines: BTreeSet::new(),
            next: 1,
            event_loop: Arc::clone(&event_loop),
            alarm: Time(u64::MAX),
            spare: Some(Socket::new()?),
        };
        Ok(Self { state: Lock::new(state), event_loop })
    }

    /// Calls `work` with the state under the lock, then sets the alarm.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = work(&mut state);
        state.set_alarm();
        result
    }

    fn turn(&self) {
        {
            let mut state = self.state.lock();
            state.run_timers(now());
            state.alarm = Time(u64::MAX);
            state.set_alarm();
        }
        self.event_loop.wait(None, |token| self.with(|state| state.on_ready(token)));
    }
}

impl State {
    /// Returns a new key.
    pub(super) fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn entry(&mut self, key: u64) -> Result<&mut Entry, Errno> {
        self.entries.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// Watches a socket. Fails only if the kernel has no memory.
    pub(super) fn watch(&self, key: u64, socket: &impl AsFd) -> os::Result<()> {
        self.event_loop.watch(socket, key)
    }

    /// Stops watching a socket; call before closing it. Closing alone does not end the watch while
    /// a forked child has a copy of the descriptor.
    pub(super) fn unwatch(&self, socket: &impl AsFd) {
        self.event_loop.forget(socket);
    }

    /// Ends the silent connections of a listener.
    pub(super) fn drop_silent(&mut self, key: u64) {
        let of_listener = self.silent.iter().filter(|(_, silent)| silent.listener == Some(key));
        for key in of_listener.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end_silent(key);
        }
    }

    fn end_silent(&mut self, key: u64) -> Option<Silent> {
        let silent = self.silent.remove(&key)?;
        self.deadlines.remove(&(silent.deadline, key));
        self.unwatch(&silent.transport);
        Some(silent)
    }

    /// Keeps a connection without an id for some time, in the place of the oldest of its kind if
    /// there are too many. Returns its key.
    fn keep_silent(&mut self, listener: Option<u64>, transport: Transport, time: u64) -> Option<u64> {
        // The two kinds must not push each other out: strangers make the first, this process's own
        // ids the second.
        let alike = |silent: &Silent| silent.listener.is_some() == listener.is_some();
        if self.silent.values().filter(|silent| alike(silent)).count() >= MAX_SILENT {
            let oldest = self.silent.iter().find(|(_, silent)| alike(silent)).map(|(key, _)| *key);
            drop(oldest.and_then(|oldest| self.end_silent(oldest)));
        }
        let (new, deadline) = (self.new_key(), now().after(time));
        self.watch(new, &transport).ok()?;
        self.silent.insert(new, Silent { listener, transport, deadline });
        self.deadlines.insert((deadline, new));
        Some(new)
    }

    /// Closes a connection that is not watched. One to another host is kept until the other side
    /// has received everything.
    pub(super) fn take_leave(&mut self, mut transport: Transport) {
        if let Transport::Far(far) = &mut transport {
            far.packets.finish();
            far.name = None;
            self.keep_silent(None, transport, FAREWELL);
        }
    }

    /// Updates the set of deadlines after a change of an entry. `before` is the entry's deadline
    /// before the change.
    pub(super) fn reschedule(&mut self, key: u64, before: Option<Time>) {
        let after = self.entries.get(&key).and_then(Entry::deadline);
        if before != after {
            self.deadlines.extend(after.map(|time| (time, key)));
            if let Some(time) = before {
                self.deadlines.remove(&(time, key));
            }
        }
    }

    /// Sets the thread's alarm to the next deadline if that is earlier.
    fn set_alarm(&mut self) {
        if let Some((next, _)) = self.deadlines.first().copied().filter(|(next, _)| *next < self.alarm) {
            self.alarm = next;
            self.event_loop.set_alarm(next);
        }
    }

    fn run_timers(&mut self, now: Time) {
        while let Some((time, key)) = self.deadlines.first().copied().filter(|(time, _)| *time <= now) {
            // Removed first, so that an entry that keeps its deadline does not block the others.
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

    /// Stops watching a listener until the given time, or ends the rest with `None`.
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

    /// Accepts the connections that wait at a listener.
    fn accept(&mut self, key: u64) {
        for _ in 0..TURN {
            let Some(listening) = self.entries.get(&key).and_then(Entry::listening) else { return };
            let socket = match listening.accept() {
                Ok(socket) => socket,
                Err(error) => {
                    use SystemErrno::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
                    if matches!(error.errno, EMFILE | ENFILE | ENOBUFS | ENOMEM) {
                        log!(WARN, %error, "soft0: a listener cannot take a connection now");
                        if matches!(error.errno, EMFILE | ENFILE) {
                            self.turn_away(key);
                        }
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
            if let Some(new) = self.keep_silent(Some(key), Transport::Near(socket), SILENCE) {
                // The request has usually arrived already.
                self.hear(new);
            }
        }
    }

    /// Refuses the connections that wait at a listener for lack of descriptors: each takes the
    /// place of the spare one. Another thread may take the place first: then they wait.
    fn turn_away(&mut self, key: u64) {
        self.spare = None;
        for _ in 0..TURN {
            let listening = self.entries.get(&key).and_then(Entry::listening);
            let Some(Ok(socket)) = listening.map(Socket::accept) else { break };
            if !socket.peer().is_ok_and(|peer| peer.is_own_user()) {
                continue;
            }
            let request = match socket.receive() {
                Ok(Received::Packet(packet)) => Message::decode(&packet.bytes),
                _ => None,
            };
            let refusal = match request {
                Some(Message::SidrReq(_)) => Message::SidrRep(SidrRep { status: sidr::NO_QP, ..SidrRep::default() }),
                _ => Message::Rej(Rej { reason: reason::NO_RESOURCES, ..Rej::default() }),
            };
            let _gone = socket.send(&refusal.encode());
        }
        self.spare = Socket::new().ok();
    }

    /// Receives the first packet of a connection.
    fn hear(&mut self, key: u64) {
        let Some(silent) = self.silent.get_mut(&key) else { return };
        let received = match silent.transport.receive_first() {
            Err(error) if error.errno == SystemErrno::EAGAIN => return,
            // What comes after this side's end means nothing.
            Ok(Received::Packet(_)) if silent.listener.is_none() => return,
            received => received,
        };
        let Some(Silent { listener: Some(listener), transport, .. }) = self.end_silent(key) else { return };
        match received {
            Ok(Received::Packet(packet)) => match Message::decode(&packet.bytes) {
                Some(message) => self.requested(listener, transport, message),
                None if !packet.fds.is_empty() => self.called_by(listener, Call::of(packet), transport),
                None => log!(DEBUG, "soft0: a connection begins with something else than a request"),
            },
            _ => log!(DEBUG, "soft0: a connection ends before a request"),
        }
    }

    /// Handles a call of another host to a listener, which another process has accepted.
    fn called_by(&mut self, key: u64, call: Result<Call, HelloError>, queued: Transport) {
        let Ok(listener) = self.entry(key) else { return };
        let port = (listener.space, listener.local.map_or(0, |local| local.port()));
        let is_full = Arc::strong_count(&self.callers) > MAX_CALLERS;
        match call {
            Ok(call) if call.port() == port && is_full => call.put_off(),
            Ok(call) if call.port() == port => {
                let counted = Arc::clone(&self.callers);
                call.meet(queued, move |caller| {
                    drop(counted);
                    if let Ok(service) = Service::get() {
                        service.with(|state| state.admit(key, caller));
                    }
                });
            }
            _ => log!(DEBUG, "soft0: a call of another host that is none"),
        }
    }

    /// Lets a caller that holds the key send its request.
    fn admit(&mut self, listener: u64, Caller { packets, from, to }: Caller) {
        if self.entries.get(&listener).and_then(Entry::listening).is_none() {
            return;
        }
        let far = Far { packets, peer: from, local: to, name: None };
        // A request that has arrived already is reported to the new watch.
        self.keep_silent(Some(listener), Transport::Far(Box::new(far)), SILENCE);
    }

    /// Handles a request to a listener: makes a new id and queues the event.
    fn requested(&mut self, listener: u64, mut transport: Transport, message: Message) {
        let Ok(asked) = self.entry(listener) else { return };
        let (source, destination) = match &message {
            Message::Req(Req { source, destination, .. }) => (*source, *destination),
            Message::SidrReq(SidrReq { source, destination, .. }) => (*source, *destination),
            _ => return,
        };
        let origin = transport.origin();
        let is_datagram = matches!(message, Message::SidrReq(_));
        if !asked.admits(is_datagram, &source, &destination, &origin) {
            log!(DEBUG, %source, %destination, "soft0: a request that its sender cannot make");
            return;
        }
        if !asked.has_room() {
            // The request counts as lost: the peer repeats it.
            let _gone = transport.send(&Message::Busy.encode());
            self.take_leave(transport);
            return;
        }
        let (channel, space, qp_type) = (Arc::clone(&asked.channel), asked.space, asked.qp_type);
        let (options, target) = (asked.inherited(), Arc::clone(&asked.target));
        let machine = Machine::asked(self.timers, &message);
        let key = self.new_key();
        if self.watch(key, &transport).is_err() {
            return;
        }
        let id = Target::new(key);
        let entry = Entry {
            local: Some(destination),
            peer: Some(source),
            is_far: matches!(origin, Origin::Far { .. }),
            role: Role::Connected { machine, link: Link::Up(transport) },
            options,
            ..Entry::new(Arc::clone(&id), Arc::clone(&channel), space, qp_type)
        };
        self.entries.insert(key, entry);
        if let Ok(asked) = self.entry(listener) {
            asked.count_request(1);
        }
        channel.push(report::request(target, id, message));
    }

    /// Handles the messages that the peer of a connection has sent.
    pub(super) fn receive(&mut self, key: u64) {
        for _ in 0..TURN {
            let Some(transport) = self.entries.get_mut(&key).and_then(Entry::connected) else { return };
            let received = match transport.receive() {
                Ok(received) => received,
                Err(error) if error.errno == SystemErrno::EAGAIN => return,
                // The kernel reports this once if the peer closed without having read every
                // message; the messages that the peer sent can still be received.
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

/// The timeouts: Linux's, or in proportion to `RDMA_SOFT_CM_TIMEOUT`, the time to wait for a reply
/// in milliseconds.
fn timers() -> Timers {
    let millis = std::env::var("RDMA_SOFT_CM_TIMEOUT").ok().and_then(|millis| millis.parse::<u64>().ok());
    let millis = millis.filter(|millis| (1..=60_000).contains(millis));
    millis.map_or(Timers::LINUX, |millis| Timers::for_response(millis * 1_000_000))
}

/// Destroys the ids that use a channel, so that no event is queued on the channel afterwards.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_awaited_and_connections_that_end_push_only_their_own_kind_out() {
        let service = Service::new().unwrap();
        service.with(|state| {
            let mut keep = |listener| {
                let transport = Transport::Near(Socket::new().unwrap());
                state.keep_silent(listener, transport, SILENCE).unwrap()
            };
            let (awaited, ends) = (keep(Some(7)), keep(None));
            for _ in 1..MAX_SILENT {
                keep(Some(7));
                keep(None);
            }
            assert!(state.silent.contains_key(&awaited) && state.silent.contains_key(&ends));
            for (listener, oldest, other) in [(Some(7), awaited, Some(ends)), (None, ends, None)] {
                let transport = Transport::Near(Socket::new().unwrap());
                state.keep_silent(listener, transport, SILENCE).unwrap();
                assert!(!state.silent.contains_key(&oldest));
                assert!(other.is_none_or(|other| state.silent.contains_key(&other)));
            }
            assert_eq!(state.silent.len(), 2 * MAX_SILENT);
        });
    }
}
