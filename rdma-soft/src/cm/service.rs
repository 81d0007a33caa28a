//! The process's connection manager: every id's entry, every socket, the timers, and the thread that looks after them.
//!
//! All state is under one lock, which is never held while anything waits. Calls of the application change it directly; the thread
//! takes what comes from other processes and from the clock. Invariants:
//!
//! 1. Sockets are known by tokens, entries by keys; neither is used twice. What comes for a token or key that is gone is dropped.
//! 2. A descriptor is in the epoll set exactly while its token is in `sockets`.
//! 3. Lock order: this lock, then the lock of an event queue. No callback runs under either.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, ptr, thread};

use super::channel::{Channel, Subject};
use super::entry::{Entry, Role};
use super::machine::{Machine, Timers};
use super::message::{Message, Req};
use super::port;
use super::socket::{Received, Socket};
use super::wire;
use crate::engine::{Errno, Time};
use crate::link::trust;
use crate::log::remark;
use crate::node::agent::{BlockedSignals, STACK};
use crate::node::clock::now;
use crate::node::fork::ForkGuard;

/// Packets taken from one socket, and connections from one listener, before others have their turn.
const TURN: usize = 32;
/// Connections that have not said anything yet; the oldest makes room for the newest.
const MAX_SILENT: usize = 256;
/// How long a connection may say nothing.
const SILENCE: u64 = 10_000_000_000;
/// How long a listener rests when the process has no descriptor left.
const REST: u64 = 100_000_000;

static SERVICE: OnceLock<Arc<Service>> = OnceLock::new();

/// The connection manager of this process.
#[derive(Debug)]
pub(super) struct Service {
    guard: ForkGuard,
    state: Mutex<State>,
    epoll: OwnedFd,
    bell: OwnedFd,
}

/// What a socket is for.
#[derive(Debug)]
enum Use {
    Listener(u64),
    Connection(u64),
    /// Accepted for this listener, and silent so far.
    Silent {
        listener: u64,
        socket: Socket,
        since: Time,
    },
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) entries: HashMap<u64, Entry>,
    pub(super) timers: Timers,
    sockets: HashMap<u64, Use>,
    deadlines: BTreeSet<(Time, u64)>,
    /// Listeners that rest, with the token under which they will be watched again.
    resting: Vec<(Time, u64, u64)>,
    /// Silent connections, oldest first.
    silent: BTreeSet<u64>,
    next: u64,
    epoll: RawFd,
    /// When the thread will look next.
    wakes: Option<Time>,
}

impl Service {
    /// The manager, started by the first call.
    ///
    /// # Errors
    ///
    /// `ENODEV` in a forked child of the process that started it, and where there is no device.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(service) = SERVICE.get() {
            return if service.guard.is_owner() { Ok(service) } else { Err(Errno(libc::ENODEV)) };
        }
        let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = SERVICE.get() {
            return Ok(service);
        }
        super::device::open()?;
        let service = Arc::new(Self::new()?);
        let signals = BlockedSignals::new();
        let started = thread::Builder::new().name("rdma-soft-cm".into()).stack_size(STACK);
        let started = started.spawn({
            let service = Arc::clone(&service);
            move || service.run()
        });
        drop(signals);
        started.map(drop)?;
        Ok(SERVICE.get_or_init(|| service))
    }

    fn new() -> io::Result<Self> {
        let guard = ForkGuard::new()?;
        // SAFETY: epoll_create1 has no conditions.
        let epoll = descriptor(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: eventfd has no conditions.
        let bell = descriptor(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        watch(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.as_raw_fd(), 0)?;
        let state = State {
            entries: HashMap::new(),
            timers: timers(),
            sockets: HashMap::new(),
            deadlines: BTreeSet::new(),
            resting: Vec::new(),
            silent: BTreeSet::new(),
            next: 1,
            epoll: epoll.as_raw_fd(),
            wakes: None,
        };
        Ok(Self { guard, state: Mutex::new(state), epoll, bell })
    }

    /// Does something with the state, and wakes the thread if it has to look sooner than it meant to.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        let sooner = match (state.next_deadline(), state.wakes) {
            (Some(next), Some(wakes)) => next < wakes,
            (next, None) => next.is_some(),
            (None, _) => false,
        };
        drop(state);
        if sooner {
            let one = 1_u64;
            // SAFETY: write reads 8 bytes of a live value. It fails only where the thread is rung often enough already.
            let _written = unsafe { libc::write(self.bell.as_raw_fd(), ptr::from_ref(&one).cast(), 8) };
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let turn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.turn()));
            if turn.is_err() {
                // The hook has reported it. Going on serves the ids that it did not concern.
                remark!(ERROR, "soft0's connection manager panicked; this is a defect of rdma-soft");
                thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }

    fn turn(&self) {
        let timeout = {
            let mut state = self.lock();
            state.run_timers(now());
            state.wakes = state.next_deadline();
            state.wakes.map_or(-1, |wakes| {
                let left = wakes.0.saturating_sub(now().0).div_ceil(1_000_000);
                libc::c_int::try_from(left).unwrap_or(libc::c_int::MAX)
            })
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; TURN];
        let room = libc::c_int::try_from(TURN).unwrap_or(1);
        // SAFETY: epoll_wait writes at most as many events as the live array has.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), room, timeout) };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            if event.u64 == 0 {
                let mut count = 0_u64;
                // SAFETY: read writes 8 bytes to a live value; the descriptor does not block.
                let _read = unsafe { libc::read(self.bell.as_raw_fd(), ptr::from_mut(&mut count).cast(), 8) };
            } else {
                self.lock().on_ready(event.u64);
            }
        }
    }
}

impl State {
    /// A key or token that nothing else has.
    pub(super) fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn entry(&mut self, key: u64) -> Result<&mut Entry, Errno> {
        self.entries.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// Watches a listener's socket. Fails only for want of kernel memory.
    pub(super) fn watch_listener(&mut self, key: u64, socket: &Socket) -> Result<u64, Errno> {
        let token = self.new_key();
        watch(self.epoll, libc::EPOLL_CTL_ADD, socket.raw(), token)?;
        self.sockets.insert(token, Use::Listener(key));
        Ok(token)
    }

    /// Watches a connection's socket.
    pub(super) fn watch_connection(&mut self, key: u64, socket: &Socket) -> Result<u64, Errno> {
        let token = self.new_key();
        watch(self.epoll, libc::EPOLL_CTL_ADD, socket.raw(), token)?;
        self.sockets.insert(token, Use::Connection(key));
        Ok(token)
    }

    /// Forgets a socket, which is closed next. Closing is not enough: a forked child may have it for a moment.
    pub(super) fn unwatch(&mut self, token: u64, socket: &Socket) {
        // One that rests is not in the set.
        if self.sockets.remove(&token).is_some() {
            let _not_there = watch(self.epoll, libc::EPOLL_CTL_DEL, socket.raw(), token);
        }
        self.resting.retain(|&(_, _, resting)| resting != token);
    }

    /// Ends the silent connections of a listener.
    pub(super) fn drop_silent(&mut self, key: u64) {
        let of_listener = |held: &Use| matches!(held, Use::Silent { listener, .. } if *listener == key);
        let tokens: Vec<u64> = self.silent.iter().copied().collect();
        for token in tokens {
            if self.sockets.get(&token).is_some_and(of_listener) {
                self.end_silent(token);
            }
        }
    }

    fn end_silent(&mut self, token: u64) -> Option<(u64, Socket)> {
        self.silent.remove(&token);
        match self.sockets.remove(&token) {
            Some(Use::Silent { listener, socket, .. }) => {
                let _not_there = watch(self.epoll, libc::EPOLL_CTL_DEL, socket.raw(), token);
                Some((listener, socket))
            }
            other => {
                self.sockets.extend(other.map(|other| (token, other)));
                None
            }
        }
    }

    /// Keeps the set of deadlines as the machines have them. `before` is what the entry had.
    pub(super) fn reschedule(&mut self, key: u64, before: Option<Time>) {
        let after = self.entries.get(&key).and_then(Entry::deadline);
        if before != after {
            self.deadlines.extend(after.map(|time| (time, key)));
            if let Some(time) = before {
                self.deadlines.remove(&(time, key));
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let machine = self.deadlines.first().map(|&(time, _)| time);
        let rest = self.resting.iter().map(|&(time, ..)| time).min();
        let silent = self.silent.first().and_then(|token| match self.sockets.get(token) {
            Some(Use::Silent { since, .. }) => Some(since.after(SILENCE)),
            _ => None,
        });
        machine.into_iter().chain(rest).chain(silent).min()
    }

    fn run_timers(&mut self, now: Time) {
        while let Some(&(time, key)) = self.deadlines.first() {
            if time > now {
                break;
            }
            // Out of the set first: a machine that keeps its deadline for whatever reason must not stop the others.
            self.deadlines.remove(&(time, key));
            self.step(key, |machine, out| machine.on_time(now, out));
            if self.entries.get(&key).and_then(Entry::deadline) == Some(time) {
                self.deadlines.insert((now.after(1_000_000), key));
            }
        }
        while let Some(&token) = self.silent.first() {
            match self.sockets.get(&token) {
                Some(Use::Silent { since, .. }) if since.after(SILENCE) > now => break,
                _ => drop(self.end_silent(token)),
            }
        }
        let (due, resting): (Vec<_>, Vec<_>) = self.resting.drain(..).partition(|&(time, ..)| time <= now);
        self.resting = resting;
        for (_, key, token) in due {
            if let Some(socket) = self.entries.get(&key).and_then(Entry::listening) {
                if watch(self.epoll, libc::EPOLL_CTL_ADD, socket.raw(), token).is_ok() {
                    self.sockets.insert(token, Use::Listener(key));
                } else {
                    self.resting.push((now.after(REST), key, token));
                }
            }
        }
    }

    fn on_ready(&mut self, token: u64) {
        match self.sockets.get(&token) {
            Some(&Use::Listener(key)) => self.accept(key, token),
            Some(&Use::Connection(key)) => self.receive(key),
            Some(Use::Silent { .. }) => self.hear(token),
            None => {}
        }
    }

    /// Takes the connections that wait at a listener.
    fn accept(&mut self, key: u64, token: u64) {
        for _ in 0..TURN {
            let Some(listening) = self.entries.get(&key).and_then(Entry::listening) else { return };
            let socket = match listening.accept() {
                Ok(socket) => socket,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    if matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) {
                        remark!(WARN, %error, "soft0: a listener cannot take a connection now");
                        let raw = listening.raw();
                        let _not_there = watch(self.epoll, libc::EPOLL_CTL_DEL, raw, token);
                        self.sockets.remove(&token);
                        self.resting.push((now().after(REST), key, token));
                    }
                    return;
                }
            };
            match socket.peer() {
                Ok(peer) if peer.uid == trust::own_uid() => {}
                Ok(peer) => {
                    remark!(DEBUG, ?peer, "soft0: a process of another user may not connect");
                    continue;
                }
                Err(_) => continue,
            }
            if self.silent.len() >= MAX_SILENT {
                if let Some(&oldest) = self.silent.first() {
                    drop(self.end_silent(oldest));
                }
            }
            let token = self.new_key();
            if watch(self.epoll, libc::EPOLL_CTL_ADD, socket.raw(), token).is_ok() {
                self.sockets.insert(token, Use::Silent { listener: key, socket, since: now() });
                self.silent.insert(token);
                // As a rule the request is there already.
                self.hear(token);
            }
        }
    }

    /// Takes the first packet of a connection.
    fn hear(&mut self, token: u64) {
        let Some(Use::Silent { socket, .. }) = self.sockets.get(&token) else { return };
        let received = match socket.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            received => received,
        };
        let Some((listener, socket)) = self.end_silent(token) else { return };
        let message = match received {
            Ok(Received::Packet(packet)) => Message::decode(&packet),
            _ => None,
        };
        match message {
            Some(message) => self.requested(listener, socket, message),
            None => remark!(DEBUG, "soft0: a connection ends before a request"),
        }
    }

    /// A request has come to a listener over a connection of its own.
    fn requested(&mut self, listener: u64, socket: Socket, message: Message) {
        let Ok(asked) = self.entry(listener) else { return };
        let (source, destination) = match &message {
            Message::Req(Req { source, destination, .. }) => (*source, *destination),
            Message::SidrReq(req) => (req.source, req.destination),
            _ => return,
        };
        let name = socket.peer_name().and_then(|name| port::parse(&name));
        let is_datagram = matches!(message, Message::SidrReq(_));
        if !asked.admits(is_datagram, &source, &destination, name) {
            remark!(DEBUG, %source, %destination, "soft0: a request that its sender cannot make");
            return;
        }
        if !asked.has_room() {
            // As good as lost: the peer asks again.
            let _gone = socket.send(&Message::Busy.encode());
            return;
        }
        let (channel, space, qp_type) = (Arc::clone(&asked.channel), asked.space, asked.qp_type);
        let heir = asked.options();
        let subject = Arc::clone(&asked.subject);
        let machine = match &message {
            Message::Req(req) => Machine::requested(self.timers, req),
            _ => Machine::datagram_requested(self.timers),
        };
        let key = self.new_key();
        let Ok(token) = self.watch_connection(key, &socket) else { return };
        let id = Subject::new(key);
        let mut entry = Entry::new(Arc::clone(&id), Arc::clone(&channel), space, qp_type);
        entry.inherit(heir);
        entry.local = Some(destination);
        entry.peer = Some(source);
        entry.role = Role::Connected { machine, link: Some((socket, token)) };
        self.entries.insert(key, entry);
        if let Ok(asked) = self.entry(listener) {
            asked.count_request();
        }
        channel.push(wire::request(subject, id, message));
    }

    /// Takes what a connection's peer has sent.
    pub(super) fn receive(&mut self, key: u64) {
        for _ in 0..TURN {
            let Some(socket) = self.entries.get(&key).and_then(Entry::connected) else { return };
            let received = match socket.receive() {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Said once where the peer has closed without having read everything; what it had sent is still there.
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => continue,
                Err(_) => Received::End,
            };
            let now = now();
            match received {
                Received::Packet(packet) => match Message::decode(&packet) {
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

/// Linux's, unless the environment has a shorter time for an answer (milliseconds); the others then shrink with it.
fn timers() -> Timers {
    let wish = std::env::var("RDMA_SOFT_CM_TIMEOUT").ok().and_then(|wish| wish.parse::<u64>().ok());
    match wish.filter(|wish| (1..=60_000).contains(wish)) {
        None => Timers::LINUX,
        Some(wish) => {
            let response = wish * 1_000_000;
            Timers { response, service: response * 11, timewait: response / 3, ..Timers::LINUX }
        }
    }
}

fn watch(epoll: RawFd, operation: libc::c_int, fd: RawFd, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
    // SAFETY: epoll_ctl reads one event from a live one.
    if unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn descriptor(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: the callers' system calls just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
