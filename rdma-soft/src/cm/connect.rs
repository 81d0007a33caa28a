//! The calls that change an id, from bind to destroy, and the steps of its `Machine`.

use std::net::SocketAddr;
use std::sync::Arc;

use nix::errno::Errno as SystemErrno;

use super::address::{self, with_port};
use super::channel::{Channel, Conn, Pending};
use super::entry::{Entry, Link, Role, Way};
use super::machine::{Machine, Output, reason};
use super::port::{self, Exclusive};
use super::service::{Service, State};
use super::transport::{Transport, Undelivered};
use super::wire::{Message, Rej, Req, SidrReq, Terms, room};
use super::{path, report};
use crate::engine::Errno;
use crate::link::port::listeners;
use crate::log::log;
use crate::node::ports;
use crate::os::now;

/// Largest backlog of a listener, the kernel's default.
const MAX_BACKLOG: u32 = 1024;

/// The way to a destination, which may be a multicast group: groups stay within a host.
fn way_to(destination: &SocketAddr) -> Result<Way, Errno> {
    if destination.ip().is_multicast() {
        return Ok(Way::Here(address::source_for(destination)));
    }
    let is_here = address::is_local(destination)?;
    Ok(match ports::source_for(destination.ip(), is_here) {
        Some(source) => Way::There(SocketAddr::new(source, 0)),
        None if is_here => Way::Here(*destination),
        None => Way::None,
    })
}

/// Calls that take a name and look for conflicting ones. They do so without the lock, because
/// listing the host's sockets may take long.
impl Service {
    /// Binds an id to a local address.
    pub(super) fn bind(&self, key: u64, address: SocketAddr) -> Result<(), Errno> {
        let request = self.with(|state| {
            let entry = state.entry(key)?;
            if entry.is_idle() { Ok(entry.bind_request(address)) } else { Err(Errno::INVAL) }
        })?;
        if !address.ip().is_unspecified() && !address::is_local(&address)? {
            return Err(Errno(libc::ENODEV));
        }
        let bound = port::bind(request)?;
        self.with(|state| state.entry(key)?.become_bound(bound))
    }

    /// Resolves a destination, which may be a multicast group: finds the source address and binds
    /// the id to it if the id is not bound.
    pub(super) fn resolve_address(
        &self,
        key: u64,
        source: Option<SocketAddr>,
        wanted: SocketAddr,
    ) -> Result<(), Errno> {
        let destination = if wanted.ip().is_unspecified() { address::loopback_of(&wanted) } else { wanted };
        let way = way_to(&destination)?;
        if self.with(|state| state.entry(key).map(|entry| entry.is_idle()))? {
            let any = || match way {
                Way::Here(source) | Way::There(source) => with_port(source, 0),
                Way::None => address::any_of(&destination),
            };
            let source = source.unwrap_or_else(any);
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(Errno::INVAL);
            }
            self.bind(key, source)?;
        }
        self.with(|state| state.entry(key)?.resolve_address(destination, way))
    }

    /// Starts to listen. An id that is not bound is first bound to any port of the IPv4 wildcard.
    pub(super) fn listen(&self, key: u64, backlog: i32) -> Result<(), Errno> {
        if self.with(|state| state.entry(key).map(|entry| entry.is_idle()))? {
            self.bind(key, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let claim = self.with(|state| match &state.entry(key)?.role {
            Role::Bound(bound) => Ok(bound.claim()),
            _ => Err(Errno::INVAL),
        })?;
        let exclusive = claim.map(|claim| claim()).transpose()?;
        self.with(|state| state.listen(key, backlog, exclusive))
    }
}

impl State {
    fn listen(&mut self, key: u64, backlog: i32, exclusive: Option<Exclusive>) -> Result<(), Errno> {
        let entry = self.entry(key)?;
        let mut bound = match std::mem::replace(&mut entry.role, Role::Idle) {
            Role::Bound(bound) => bound,
            other => {
                entry.role = other;
                return Err(Errno::INVAL);
            }
        };
        let listens = bound.listen(exclusive).and_then(|()| Ok(self.watch(key, &bound.socket)?));
        let backlog = u32::try_from(backlog).ok().filter(|asked| (1..=MAX_BACKLOG).contains(asked));
        let backlog = backlog.unwrap_or(MAX_BACKLOG);
        let entry = self.entry(key)?;
        entry.role = match listens {
            Ok(()) => Role::Listening { bound, backlog, waiting: 0, rests: None },
            Err(_) => Role::Bound(bound),
        };
        listens
    }

    /// Sends a request for a connection, or for a datagram service.
    pub(super) fn connect(&mut self, key: u64, asked: Conn) -> Result<(), Errno> {
        let timers = self.timers;
        let entry = self.entry(key)?;
        let room = if entry.is_datagram() { room::SIDR_REQ } else { room::REQ };
        let (Some(source), Some(destination)) = (entry.local, entry.peer) else { return Err(Errno::INVAL) };
        if !matches!(entry.role, Role::RouteResolved(_)) || asked.terms.private.len() > room {
            return Err(Errno::INVAL);
        }
        let request = if entry.is_datagram() {
            Message::SidrReq(SidrReq { source, destination, private: asked.terms.private })
        } else {
            Message::Req(Req {
                source,
                destination,
                psn: entry.psn,
                terms: asked.terms.fitted(),
                retry_count: asked.retry_count.min(7),
                ack_timeout: entry.options.ack_timeout.unwrap_or(path::ACK_TIMEOUT),
                traffic_class: entry.options.traffic_class,
            })
        };
        let mut out = Vec::new();
        let machine = Machine::ask(timers, request, now(), &mut out);
        let before = std::mem::replace(&mut entry.role, Role::Idle);
        let link = if let Role::RouteResolved(bound) = before { Link::Bound(bound.socket) } else { Link::None };
        entry.role = Role::Connected { machine, link };
        self.reschedule(key, None);
        self.execute(key, out);
        Ok(())
    }

    /// Accepts a request.
    pub(super) fn accept_request(&mut self, key: u64, answer: Terms, qkey: u32) -> Result<(), Errno> {
        let entry = self.entry(key)?;
        let (room, psn) = (if entry.is_datagram() { room::SIDR_REP } else { room::REP }, entry.psn);
        if answer.private.len() > room {
            return Err(Errno::INVAL);
        }
        self.call(key, |machine, out| machine.accept(answer.fitted(), psn, qkey, now(), out))
    }

    /// Rejects a request, or an answer.
    pub(super) fn reject(&mut self, key: u64, reason: u16, private: Vec<u8>) -> Result<(), Errno> {
        let is_datagram = self.entry(key)?.is_datagram();
        if private.len() > if is_datagram { room::SIDR_REP } else { room::REJ } {
            return Err(Errno::INVAL);
        }
        let reason = if reason == 0 { reason::CONSUMER_DEFINED } else { reason };
        self.call(key, |machine, out| machine.reject(Rej { reason, private }, now(), out))
    }

    /// Removes a request from its listener's backlog, and moves its new id to the channel on which
    /// C took the event.
    pub(super) fn request_taken(&mut self, listener: u64, id: u64, channel: &Arc<Channel>) {
        if let Ok(listener) = self.entry(listener) {
            listener.count_request(-1);
        }
        if let Ok(entry) = self.entry(id) {
            entry.channel = Arc::clone(channel);
        }
    }

    /// Ends an id: tells the peer, removes the id's queued events and admits no new ones.
    pub(super) fn destroy(&mut self, key: u64) {
        // Handles pending messages first, as `call` does, because they decide the last message to
        // the peer.
        self.receive(key);
        self.step(key, |machine, out| machine.destroy(out));
        let Some(mut entry) = self.entries.remove(&key) else { return };
        self.reschedule(key, entry.deadline());
        if let Some(socket) = entry.listening() {
            self.unwatch(socket);
            self.drop_silent(key);
        }
        let groups: Vec<SocketAddr> = entry.memberships.iter().map(|(group, _)| *group).collect();
        for group in groups {
            let _left = entry.leave(&group);
        }
        for Pending { new, .. } in entry.take_events(|| entry.target.ledger.close()).0 {
            new.into_iter().for_each(|id| self.destroy(id.key));
        }
    }

    /// Runs a step of an id's machine for the application, after the messages that the peer has
    /// sent so far. `EINVAL` if the id has no machine.
    pub(super) fn call(
        &mut self,
        key: u64,
        work: impl FnOnce(&mut Machine, &mut Vec<Output>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.receive(key);
        self.try_step(key, work)
    }

    /// Runs a step of an id's machine that cannot fail, and executes its outputs.
    pub(super) fn step(&mut self, key: u64, work: impl FnOnce(&mut Machine, &mut Vec<Output>)) {
        // Fails only if the id is destroyed or has no machine: nothing to do then.
        let _none = self.try_step(key, |machine, out| {
            work(machine, out);
            Ok(())
        });
    }

    fn try_step(
        &mut self,
        key: u64,
        work: impl FnOnce(&mut Machine, &mut Vec<Output>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Role::Connected { machine, .. } = &mut self.entry(key)?.role else { return Err(Errno::INVAL) };
        let before = machine.deadline();
        let mut out = Vec::new();
        let result = work(machine, &mut out);
        self.reschedule(key, before);
        self.execute(key, out);
        result
    }

    fn execute(&mut self, key: u64, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send(message) => self.send(key, &message),
                Output::Request(message) => {
                    if self.entries.get_mut(&key).is_some_and(|entry| entry.connected().is_some()) {
                        self.send(key, &message);
                        continue;
                    }
                    match self.dial(key, &message) {
                        Ok(()) | Err(Undelivered::Lost) => {}
                        Err(Undelivered::Refused) => self.step(key, |machine, out| machine.on_refused(now(), out)),
                        Err(Undelivered::OtherUser) => self.step(key, |machine, out| machine.on_other_user(out)),
                    }
                }
                Output::Hangup => self.hang_up(key),
                Output::Notify(notice) => {
                    if let Ok(entry) = self.entry(key) {
                        entry.channel.push(report::notice(entry, notice));
                    }
                }
            }
        }
    }

    fn send(&mut self, key: u64, message: &Message) {
        if let Some(transport) = self.entries.get_mut(&key).and_then(Entry::connected) {
            // A message is lost if the peer has ended or does not read; the machine repeats
            // requests.
            let _lost = transport.send(&message.encode());
        }
    }

    /// Connects to the peer's listener and sends the request.
    fn dial(&mut self, key: u64, message: &Message) -> Result<(), Undelivered> {
        let entry = self.entry(key)?;
        if entry.is_far {
            return self.dial_host(key, message);
        }
        let (Some(local), Some(peer)) = (entry.local, entry.peer) else { return Err(Undelivered::Lost) };
        let (space, request) = (entry.space, entry.bind_request(local));
        let Role::Connected { link, .. } = &mut entry.role else { return Err(Undelivered::Lost) };
        let mut socket = match std::mem::replace(link, Link::None) {
            Link::Bound(socket) => socket,
            // The first connection has ended, so the id's name is free. If another id has taken the
            // name meanwhile, the request counts as lost and is repeated: listeners check the name.
            _ => port::rebind(request)?.socket,
        };
        // Another user can take the name of one address although a listener has the wildcard, so a
        // process of another user does not end the search.
        let mut outcome = Undelivered::Refused;
        for name in listeners(space, &peer) {
            match socket.connect(&name).map_err(|error| error.errno) {
                Ok(()) => {
                    let listener = socket.peer()?;
                    if listener.is_own_user() {
                        self.watch(key, &socket)?;
                        let _lost = socket.send(&message.encode());
                        self.set_link(key, Link::Up(Transport::Near(socket)));
                        return Ok(());
                    }
                    let (pid, uid) = (listener.pid, listener.uid);
                    log!(WARN, pid, uid, %peer, "soft0: a process of another user listens there");
                    outcome = Undelivered::OtherUser;
                    // The socket's name must be free before `rebind` takes it again.
                    drop(socket);
                    socket = port::rebind(request)?.socket;
                }
                // No listener has this name, or a socket of another type has it.
                Err(SystemErrno::ECONNREFUSED | SystemErrno::EPROTOTYPE) => {}
                Err(SystemErrno::EAGAIN) => outcome = Undelivered::Lost,
                Err(_) => return Err(Undelivered::Lost),
            }
        }
        self.set_link(key, Link::Bound(socket));
        Err(outcome)
    }

    pub(super) fn set_link(&mut self, key: u64, new: Link) {
        if let Ok(Entry { role: Role::Connected { link, .. }, .. }) = self.entry(key) {
            *link = new;
        }
    }

    /// Closes an id's connection.
    pub(super) fn hang_up(&mut self, key: u64) {
        if let Ok(Entry { role: Role::Connected { link, .. }, .. }) = self.entry(key) {
            if let Link::Up(transport) = std::mem::replace(link, Link::None) {
                self.unwatch(&transport);
                self.take_leave(transport);
            }
        }
    }
}
