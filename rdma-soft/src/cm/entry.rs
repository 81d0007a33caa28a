//! What the manager knows of an id, and what the calls of the application do with it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rdma_sys::{ibv_qp_type, rdma_cm_event_type};

use super::address::{self, with_port};
use super::channel::{Body, Channel, Conn, Membership, Pending, Subject};
use super::machine::{Agreed, Machine, Output, reason};
use super::message::{Message, Rej, Rep, Req, SidrRep, SidrReq, Terms, room};
use super::port::{self, Bound, Sole, Space, Wish};
use super::service::{Service, State};
use super::socket::Socket;
use super::wire;
use crate::engine::{Errno, Time};
use crate::link::trust;
use crate::log::remark;
use crate::node;
use crate::node::clock::now;

type Event = rdma_cm_event_type;

/// Requests that may wait at a listener, as the kernel has it.
const MAX_BACKLOG: u32 = 1024;
/// Groups that an id may be a member of.
const MAX_MEMBERSHIPS: usize = 1024;

/// How far an id has come.
#[derive(Debug)]
pub(super) enum Role {
    Idle,
    Bound(Bound),
    AddressResolved(Bound),
    RouteResolved(Bound),
    Listening {
        bound: Bound,
        token: u64,
        backlog: u32,
        waiting: u32,
    },
    /// Asking, asked, connected, or past it.
    Connected {
        machine: Machine,
        link: Option<(Socket, u64)>,
    },
}

/// What can be set of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse: bool,
    pub(super) only_family: Option<bool>,
}

/// An id.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) subject: Arc<Subject>,
    pub(super) channel: Arc<Channel>,
    pub(super) space: Space,
    pub(super) qp_type: ibv_qp_type,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) role: Role,
    pub(super) options: Options,
    pub(super) memberships: Vec<(SocketAddr, Arc<Membership>)>,
    /// The packet sequence number that the id's queue pair expects first.
    psn: u32,
}

impl Entry {
    pub(super) fn new(subject: Arc<Subject>, channel: Arc<Channel>, space: Space, qp_type: ibv_qp_type) -> Self {
        // A number that is not random is a weakness, no error.
        let psn = u32::try_from(node::random().unwrap_or(0) & 0x00ff_ffff).unwrap_or(0);
        Self {
            subject,
            channel,
            space,
            qp_type,
            local: None,
            peer: None,
            role: Role::Idle,
            options: Options::default(),
            memberships: Vec::new(),
            psn,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }

    pub(super) fn options(&self) -> Options {
        self.options
    }

    /// What an id that a request brings has of its listener's.
    pub(super) fn inherit(&mut self, options: Options) {
        self.options = Options { reuse: false, only_family: None, ..options };
    }

    /// Whether it has an address of the device, and not a wildcard.
    pub(super) fn is_on_device(&self) -> bool {
        self.local.is_some_and(|local| !local.ip().is_unspecified())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Connected { machine, .. } => machine.deadline(),
            _ => None,
        }
    }

    pub(super) fn machine(&self) -> Option<&Machine> {
        match &self.role {
            Role::Connected { machine, .. } => Some(machine),
            _ => None,
        }
    }

    pub(super) fn listening(&self) -> Option<&Socket> {
        match &self.role {
            Role::Listening { bound, .. } => Some(&bound.socket),
            _ => None,
        }
    }

    pub(super) fn connected(&self) -> Option<&Socket> {
        match &self.role {
            Role::Connected { link: Some((socket, _)), .. } => Some(socket),
            _ => None,
        }
    }

    /// Whether a request may be what it says: to an address of the listener, from the address that the kernel saw.
    pub(super) fn admits(
        &self,
        is_datagram: bool,
        source: &SocketAddr,
        destination: &SocketAddr,
        name: Option<(Space, u16, Option<IpAddr>)>,
    ) -> bool {
        let Some((space, port, ip)) = name else { return false };
        let Some(local) = self.local else { return false };
        let is_local = |address| address::is_local(address) == Ok(true);
        let to_us = destination.port() == local.port()
            && if local.ip().is_unspecified() { is_local(destination) } else { destination.ip() == local.ip() };
        let from_there = source.port() == port && ip.map_or_else(|| is_local(source), |ip| ip == source.ip());
        is_datagram == self.is_datagram() && space == self.space && to_us && from_there
    }

    pub(super) fn has_room(&self) -> bool {
        matches!(self.role, Role::Listening { backlog, waiting, .. } if waiting < backlog)
    }

    pub(super) fn count_request(&mut self) {
        if let Role::Listening { waiting, .. } = &mut self.role {
            *waiting += 1;
        }
    }

    fn wish(&self, address: SocketAddr) -> Wish {
        Wish {
            space: self.space,
            address,
            reuse: self.options.reuse,
            only_family: self.options.only_family.unwrap_or(address.is_ipv4()),
        }
    }

    /// Has no local address yet.
    fn is_idle(&self) -> bool {
        matches!(self.role, Role::Idle)
    }

    /// Gets a local address.
    fn become_bound(&mut self, bound: Bound) -> Result<(), Errno> {
        if !self.is_idle() {
            // Another thread was quicker.
            return Err(Errno::INVAL);
        }
        self.local = Some(bound.address);
        self.role = Role::Bound(bound);
        Ok(())
    }

    fn tell(&self, code: Event, status: i32, body: Body) {
        self.channel.push(Pending { subject: Arc::clone(&self.subject), code, status, body });
    }

    fn resolve_address(&mut self, destination: SocketAddr, is_ours: bool) -> Result<(), Errno> {
        let local = self.local.ok_or(Errno::INVAL)?;
        if local.is_ipv4() != destination.is_ipv4() || !matches!(self.role, Role::Bound(_)) {
            return Err(Errno::INVAL);
        }
        if !is_ours {
            self.tell(Event::RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV, Body::None);
            return Ok(());
        }
        if let Role::Bound(bound) = std::mem::replace(&mut self.role, Role::Idle) {
            self.role = Role::AddressResolved(bound);
        }
        if local.ip().is_unspecified() {
            self.local = Some(with_port(destination, local.port()));
        }
        self.peer = Some(destination);
        self.tell(Event::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Body::None);
        Ok(())
    }

    /// Finds the way to the peer: there is one.
    pub(super) fn resolve_route(&mut self) -> Result<(), Errno> {
        match std::mem::replace(&mut self.role, Role::Idle) {
            Role::AddressResolved(bound) => {
                self.role = Role::RouteResolved(bound);
                self.tell(Event::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Body::None);
                Ok(())
            }
            other => {
                self.role = other;
                Err(Errno::INVAL)
            }
        }
    }

    /// Remembers a membership.
    pub(super) fn join(
        &mut self,
        group: SocketAddr,
        membership: &Arc<Membership>,
        event: impl FnOnce(&Self) -> Result<Pending, Errno>,
    ) -> Result<(), Errno> {
        let may = matches!(self.role, Role::Bound(_) | Role::AddressResolved(_)) && self.is_on_device();
        if !may || !self.is_datagram() || group.ip().is_unspecified() {
            return Err(Errno::INVAL);
        }
        if self.memberships.len() >= MAX_MEMBERSHIPS {
            return Err(Errno::NOMEM);
        }
        let event = event(self)?;
        self.memberships.push((group, Arc::clone(membership)));
        self.channel.push(event);
        Ok(())
    }

    /// Forgets one, the last that was joined of its address, and its event if that is not taken yet.
    pub(super) fn leave(&mut self, group: &SocketAddr) -> Result<Arc<Membership>, Errno> {
        let place = self.memberships.iter().rposition(|(joined, _)| joined == group);
        let (_, membership) = self.memberships.remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        let of_membership = |pending: &Pending| match &pending.body {
            Body::Multicast(told, _) => Arc::ptr_eq(told, &membership),
            _ => false,
        };
        self.channel.queue.retract(of_membership, || membership.ledger.close());
        Ok(membership)
    }

    /// Queues an event of the application's own.
    pub(super) fn write_event(&self, code: Event, status: i32, arg: u64) {
        self.tell(code, status, Body::Arg(arg));
    }

    /// Moves to another channel, with the events that are not taken yet.
    pub(super) fn migrate(&mut self, channel: Arc<Channel>) {
        let subject = &self.subject;
        let ours = |pending: &Pending| Arc::ptr_eq(&pending.subject, subject);
        let (events, ()) = self.channel.queue.extract(ours, || ());
        self.channel = channel;
        for event in events {
            self.channel.push(event);
        }
    }

    /// What the queue pair needs: to go to INIT, or beyond it.
    pub(super) fn agreed(&self, for_init: bool) -> Result<Option<Agreed>, Errno> {
        if !self.is_on_device() {
            return Err(Errno::INVAL);
        }
        match self.machine() {
            Some(machine) if !self.is_datagram() => {
                let agreed = if for_init { machine.for_init() } else { machine.for_ready() };
                agreed.map(|agreed| Some(Agreed { rq_psn: self.psn, ..agreed }))
            }
            _ => Ok(None),
        }
    }
}

/// What takes a name, and looks for others that stand in its way: without the lock, for that may last.
impl Service {
    /// Takes a local address for an id.
    pub(super) fn bind(&self, key: u64, address: SocketAddr) -> Result<(), Errno> {
        let wish = self.with(|state| {
            let entry = state.entry(key)?;
            if entry.is_idle() { Ok(entry.wish(address)) } else { Err(Errno::INVAL) }
        })?;
        if !address.ip().is_unspecified() && !address::is_local(&address)? {
            return Err(Errno(libc::ENODEV));
        }
        let bound = port::bind(wish)?;
        self.with(|state| state.entry(key)?.become_bound(bound))
    }

    /// Finds the device and our address for a peer's.
    pub(super) fn resolve_address(
        &self,
        key: u64,
        source: Option<SocketAddr>,
        wanted: SocketAddr,
    ) -> Result<(), Errno> {
        let destination = if wanted.ip().is_unspecified() { address::loopback_of(&wanted) } else { wanted };
        let is_ours = address::is_local(&destination)?;
        if self.with(|state| state.entry(key).map(|entry| entry.is_idle()))? {
            let source = source
                .unwrap_or_else(|| if is_ours { with_port(destination, 0) } else { address::any_of(&destination) });
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(Errno::INVAL);
            }
            self.bind(key, source)?;
        }
        self.with(|state| state.entry(key)?.resolve_address(destination, is_ours))
    }

    /// Starts to listen; an id that is not bound is bound to any port of the IPv4 wildcard.
    pub(super) fn listen(&self, key: u64, backlog: i32) -> Result<(), Errno> {
        if self.with(|state| state.entry(key).map(|entry| entry.is_idle()))? {
            self.bind(key, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let claim = self.with(|state| match &state.entry(key)?.role {
            Role::Bound(bound) => Ok(bound.claim()),
            _ => Err(Errno::INVAL),
        })?;
        let sole = claim.map(|claim| claim()).transpose()?;
        self.with(|state| state.listen(key, backlog, sole))
    }
}

impl State {
    fn listen(&mut self, key: u64, backlog: i32, sole: Option<Sole>) -> Result<(), Errno> {
        let entry = self.entry(key)?;
        let mut bound = match std::mem::replace(&mut entry.role, Role::Idle) {
            Role::Bound(bound) => bound,
            other => {
                entry.role = other;
                return Err(Errno::INVAL);
            }
        };
        let listens = bound.listen(sole).and_then(|()| self.watch_listener(key, &bound.socket));
        let backlog =
            u32::try_from(backlog).ok().filter(|&wish| wish != 0 && wish <= MAX_BACKLOG).unwrap_or(MAX_BACKLOG);
        let entry = self.entry(key)?;
        match listens {
            Ok(token) => {
                entry.role = Role::Listening { bound, token, backlog, waiting: 0 };
                Ok(())
            }
            Err(errno) => {
                entry.role = Role::Bound(bound);
                Err(errno)
            }
        }
    }

    /// Asks for a connection, or for a datagram service.
    pub(super) fn connect(&mut self, key: u64, asked: Conn) -> Result<(), Errno> {
        let timers = self.timers;
        let entry = self.entry(key)?;
        let room = if entry.is_datagram() { room::SIDR_REQ } else { room::REQ };
        let (Some(source), Some(destination)) = (entry.local, entry.peer) else { return Err(Errno::INVAL) };
        if !matches!(entry.role, Role::RouteResolved(_)) || asked.terms.private.len() > room {
            return Err(Errno::INVAL);
        }
        let mut out = Vec::new();
        let machine = if entry.is_datagram() {
            let req = SidrReq { source, destination, private: asked.terms.private };
            Machine::ask_datagram(timers, req, now(), &mut out)
        } else {
            let req = Req {
                source,
                destination,
                psn: entry.psn,
                terms: asked.terms.fitted(),
                retry_count: asked.retry_count.min(7),
                ack_timeout: entry.options.ack_timeout.unwrap_or(wire::ACK_TIMEOUT),
                traffic_class: entry.options.traffic_class,
            };
            Machine::connect(timers, req, now(), &mut out)
        };
        let before = std::mem::replace(&mut entry.role, Role::Connected { machine, link: None });
        let bound = match before {
            Role::RouteResolved(bound) => Some(bound),
            _ => None,
        };
        self.reschedule(key, None);
        self.execute(key, out, bound);
        Ok(())
    }

    /// Accepts a request.
    pub(super) fn accept_request(&mut self, key: u64, answer: Terms, qkey: u32) -> Result<(), Errno> {
        let entry = self.entry(key)?;
        let (is_datagram, psn) = (entry.is_datagram(), entry.psn);
        let room = if is_datagram { room::SIDR_REP } else { room::REP };
        if answer.private.len() > room {
            return Err(Errno::INVAL);
        }
        self.call(key, |machine, out| {
            let terms = answer.fitted();
            if is_datagram {
                let rep = SidrRep { status: 0, qp_num: terms.qp_num, qkey, private: terms.private };
                return machine.accept_datagram(rep, out);
            }
            machine.accept(Rep { psn, terms }, now(), out)
        })
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

    /// Takes a channel's request off its listener's count, and the new id to the channel where it was taken.
    pub(super) fn request_taken(&mut self, listener: u64, id: u64, channel: &Arc<Channel>) {
        if let Ok(Entry { role: Role::Listening { waiting, .. }, .. }) = self.entry(listener) {
            *waiting = waiting.saturating_sub(1);
        }
        if let Ok(entry) = self.entry(id) {
            entry.channel = Arc::clone(channel);
        }
    }

    /// Ends an id: the peer learns of it, its events are taken back, and no more come.
    pub(super) fn destroy(&mut self, key: u64) {
        // As in `call`: what is said in the end is an answer to what the peer has said.
        self.receive(key);
        let before = self.entries.get(&key).and_then(Entry::deadline);
        self.step(key, |machine, out| machine.destroy(out));
        self.reschedule(key, before);
        let Some(mut entry) = self.entries.remove(&key) else { return };
        if let Role::Listening { bound, token, .. } = &entry.role {
            self.unwatch(*token, &bound.socket);
            self.drop_silent(key);
        }
        let groups: Vec<SocketAddr> = entry.memberships.iter().map(|(group, _)| *group).collect();
        for group in groups {
            let _left = entry.leave(&group);
        }
        let subject = &entry.subject;
        let ours = |pending: &Pending| Arc::ptr_eq(&pending.subject, subject);
        let (events, ()) = entry.channel.queue.extract(ours, || subject.ledger.close());
        for id in events.iter().filter_map(Pending::new_id) {
            self.destroy(id.key);
        }
    }

    /// Lets an id's machine make a step that the application asks for. What the peer had said before comes first: a call does
    /// not overtake it.
    pub(super) fn call(
        &mut self,
        key: u64,
        work: impl FnOnce(&mut Machine, &mut Vec<Output>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.receive(key);
        self.try_step(key, work)
    }

    /// Lets an id's machine make a step that cannot fail, and does what it says.
    pub(super) fn step(&mut self, key: u64, work: impl FnOnce(&mut Machine, &mut Vec<Output>)) {
        // An id that is gone, or has no machine, makes no step.
        let _none = self.try_step(key, |machine, out| {
            work(machine, out);
            Ok(())
        });
    }

    /// Lets an id's machine make a step, and does what it says.
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
        self.execute(key, out, None);
        result
    }

    fn execute(&mut self, key: u64, out: Vec<Output>, mut bound: Option<Bound>) {
        for output in out {
            match output {
                Output::Send(message) => self.send(key, &message),
                Output::Request(message) => {
                    let has_link = self.entries.get(&key).is_some_and(|entry| entry.connected().is_some());
                    if has_link {
                        self.send(key, &message);
                    } else if self.dial(key, &message, bound.take()) == Err(Errno(libc::ECONNREFUSED)) {
                        self.step(key, |machine, out| machine.on_refused(out));
                    }
                }
                Output::Hangup => self.hang_up(key),
                Output::Tell(told) => {
                    if let Ok(entry) = self.entry(key) {
                        entry.channel.push(wire::told(entry, told));
                    }
                }
            }
        }
    }

    fn send(&mut self, key: u64, message: &Message) {
        if let Some(socket) = self.entries.get(&key).and_then(Entry::connected) {
            // What cannot be sent is lost: to a peer that is gone, or that does not read and will be asked again.
            let _lost = socket.send(&message.encode());
        }
    }

    /// Connects to the peer's listener and sends the request. `ECONNREFUSED` if nobody listens; with any other error the
    /// request is lost.
    fn dial(&mut self, key: u64, message: &Message, bound: Option<Bound>) -> Result<(), Errno> {
        let entry = self.entry(key)?;
        let (Some(local), Some(peer)) = (entry.local, entry.peer) else { return Err(Errno::INVAL) };
        let (space, wish) = (entry.space, entry.wish(local));
        let mut socket = match bound {
            Some(bound) => bound.socket,
            // The first connection has ended, and its name is free. If somebody was quick the request is lost, and made again: under
            // another name nobody would believe it.
            None => port::rebind(wish)?.socket,
        };
        // Anybody can take the name of an address under a listener at all of them: who is no help does not end the search.
        let mut found = Err(Errno(libc::ECONNREFUSED));
        for name in port::listeners(space, &peer) {
            match socket.connect(&name) {
                Ok(()) => {
                    let listener = socket.peer()?;
                    if listener.uid == trust::own_uid() {
                        found = Ok(());
                        break;
                    }
                    remark!(
                        WARN,
                        pid = listener.pid,
                        uid = listener.uid,
                        %peer,
                        "soft0: a process of another user listens there"
                    );
                    // Our name is free once the socket is closed.
                    drop(socket);
                    socket = port::rebind(wish)?.socket;
                }
                Err(error) => match error.raw_os_error() {
                    // Nobody there, or something else.
                    Some(libc::ECONNREFUSED | libc::EPROTOTYPE) => {}
                    Some(libc::EAGAIN) => found = Err(error.into()),
                    _ => return Err(error.into()),
                },
            }
        }
        found?;
        let token = self.watch_connection(key, &socket)?;
        let _lost = socket.send(&message.encode());
        if let Role::Connected { link, .. } = &mut self.entry(key)?.role {
            *link = Some((socket, token));
        }
        Ok(())
    }

    /// Closes an id's connection.
    pub(super) fn hang_up(&mut self, key: u64) {
        if let Ok(Entry { role: Role::Connected { link, .. }, .. }) = self.entry(key) {
            if let Some((socket, token)) = link.take() {
                self.unwatch(token, &socket);
            }
        }
    }
}
