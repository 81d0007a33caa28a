//! The connection manager's entry of an id: its addresses, role, options and memberships.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rdma_sys::{ibv_qp_type, rdma_cm_event_type as Code};

use super::address::{self, with_port};
use super::channel::{Body, Channel, Membership, Pending, Target};
use super::machine::{Agreed, Machine};
use super::port::{BindRequest, Bound};
use super::transport::{Origin, Transport};
use crate::engine::{Errno, Time};
use crate::link::port::Space;
use crate::os::{self, socket::Socket};

/// Largest number of multicast memberships of an id.
const MAX_MEMBERSHIPS: usize = 1024;

/// State of an id, with the socket or machine of that state.
#[derive(Debug)]
pub(super) enum Role {
    Idle,
    Bound(Bound),
    AddressResolved(Bound),
    RouteResolved(Bound),
    /// The socket is watched, except during a rest, while the process has no free descriptor.
    Listening {
        bound: Bound,
        backlog: u32,
        waiting: u32,
        rests: Option<Time>,
    },
    /// An active or passive connection, from its request to its end.
    Connected {
        machine: Machine,
        link: Link,
    },
}

/// The transport of a connection.
#[derive(Debug)]
pub(super) enum Link {
    None,
    /// Bound to the id's name, for the next request.
    Bound(Socket),
    /// The same, while a thread calls another host.
    Dialling(Socket),
    /// Connected and watched.
    Up(Transport),
}

/// The way to a destination, with the address from which packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Within this host.
    Here(SocketAddr),
    /// To another host.
    There(SocketAddr),
    None,
}

/// The options of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse: bool,
    pub(super) only_family: Option<bool>,
}

/// An id of the connection manager.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) target: Arc<Target>,
    pub(super) channel: Arc<Channel>,
    pub(super) space: Space,
    pub(super) qp_type: ibv_qp_type,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Whether the peer is on another host.
    pub(super) is_far: bool,
    pub(super) role: Role,
    pub(super) options: Options,
    pub(super) memberships: Vec<(SocketAddr, Arc<Membership>)>,
    /// The first PSN that the id's queue pair expects.
    pub(super) psn: u32,
}

impl Entry {
    pub(super) fn new(target: Arc<Target>, channel: Arc<Channel>, space: Space, qp_type: ibv_qp_type) -> Self {
        // Without random numbers the PSN is 0, which is guessable but valid.
        let psn = os::random().map_or(0, u32::from_ne_bytes) & 0x00ff_ffff;
        let (local, peer, role, options) = (None, None, Role::Idle, Options::default());
        Self {
            target,
            channel,
            space,
            qp_type,
            local,
            peer,
            is_far: false,
            role,
            options,
            memberships: Vec::new(),
            psn,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }

    /// The options that the id of a request inherits from this listener.
    pub(super) fn inherited(&self) -> Options {
        Options { reuse: false, only_family: None, ..self.options }
    }

    /// Whether the id has a local address that is not a wildcard.
    pub(super) fn is_on_device(&self) -> bool {
        self.local.is_some_and(|local| !local.ip().is_unspecified())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Listening { rests, .. } => *rests,
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

    pub(super) fn connected(&mut self) -> Option<&mut Transport> {
        match &mut self.role {
            Role::Connected { link: Link::Up(transport), .. } => Some(transport),
            _ => None,
        }
    }

    /// Whether a request may come to this listener: its destination is an address of the listener,
    /// and its source agrees with the sender's socket name or address, which the kernel reports.
    pub(super) fn admits(
        &self,
        is_datagram: bool,
        source: &SocketAddr,
        destination: &SocketAddr,
        origin: &Origin,
    ) -> bool {
        let Some(local) = self.local else { return false };
        let is_local = |address| address::is_local(address) == Ok(true);
        let has = |address: IpAddr| local.ip().is_unspecified() || local.ip() == address;
        let (from_there, to_us) = match *origin {
            Origin::Near(Some((space, port, ip))) => (
                space == self.space
                    && source.port() == port
                    && ip.map_or_else(|| is_local(source), |ip| ip == source.ip()),
                has(destination.ip()) && (!local.ip().is_unspecified() || is_local(destination)),
            ),
            // The call has named this listener's port space and port.
            Origin::Far { peer, local: called } => (source.ip() == peer, destination.ip() == called && has(called)),
            Origin::Near(None) => return false,
        };
        is_datagram == self.is_datagram() && destination.port() == local.port() && from_there && to_us
    }

    pub(super) fn has_room(&self) -> bool {
        matches!(self.role, Role::Listening { backlog, waiting, .. } if waiting < backlog)
    }

    /// Changes the listener's count of waiting requests: +1 when one arrives, -1 when C takes one.
    pub(super) fn count_request(&mut self, by: i32) {
        if let Role::Listening { waiting, .. } = &mut self.role {
            *waiting = waiting.saturating_add_signed(by);
        }
    }

    pub(super) fn bind_request(&self, address: SocketAddr) -> BindRequest {
        let only_family = self.options.only_family.unwrap_or(address.is_ipv4());
        BindRequest { space: self.space, address, reuse: self.options.reuse, only_family }
    }

    /// Whether the id has no local address yet.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.role, Role::Idle)
    }

    /// Makes the id bound. `EINVAL` if it has a local address already.
    pub(super) fn become_bound(&mut self, bound: Bound) -> Result<(), Errno> {
        if !self.is_idle() {
            // Another thread bound the id between the two locks of `Service::bind`.
            return Err(Errno::INVAL);
        }
        self.local = Some(bound.address);
        self.role = Role::Bound(bound);
        Ok(())
    }

    /// Queues an event of the id on its channel.
    pub(super) fn push(&self, code: Code, status: i32, body: Body) {
        self.channel.push(Pending { target: Arc::clone(&self.target), code, status, new: None, body });
    }

    /// Stores the destination and queues the event: `ADDR_ERROR` without a way.
    pub(super) fn resolve_address(&mut self, destination: SocketAddr, way: Way) -> Result<(), Errno> {
        let local = self.local.ok_or(Errno::INVAL)?;
        if local.is_ipv4() != destination.is_ipv4() || !matches!(self.role, Role::Bound(_)) {
            return Err(Errno::INVAL);
        }
        let (source, is_far) = match way {
            Way::Here(source) => (source, false),
            // Packets to other hosts leave from that address alone.
            Way::There(source) if local.ip().is_unspecified() || local.ip() == source.ip() => (source, true),
            Way::There(_) | Way::None => {
                let errno = if way == Way::None { libc::ENODEV } else { libc::EHOSTUNREACH };
                self.push(Code::RDMA_CM_EVENT_ADDR_ERROR, -errno, Body::None);
                return Ok(());
            }
        };
        if let Role::Bound(bound) = std::mem::replace(&mut self.role, Role::Idle) {
            self.role = Role::AddressResolved(bound);
        }
        if local.ip().is_unspecified() {
            self.local = Some(with_port(source, local.port()));
        }
        (self.peer, self.is_far) = (Some(destination), is_far);
        self.push(Code::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Body::None);
        Ok(())
    }

    /// Marks the route as resolved and queues the event. Within a host there is always a route; the
    /// request finds out whether there is one to another host.
    pub(super) fn resolve_route(&mut self) -> Result<(), Errno> {
        match std::mem::replace(&mut self.role, Role::Idle) {
            Role::AddressResolved(bound) => {
                self.role = Role::RouteResolved(bound);
                self.push(Code::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Body::None);
                Ok(())
            }
            other => {
                self.role = other;
                Err(Errno::INVAL)
            }
        }
    }

    /// Adds a membership and queues its event.
    pub(super) fn join(
        &mut self,
        group: SocketAddr,
        membership: Arc<Membership>,
        event: impl FnOnce(&Self, &Arc<Membership>) -> Result<Pending, Errno>,
    ) -> Result<(), Errno> {
        let may = matches!(self.role, Role::Bound(_) | Role::AddressResolved(_)) && self.is_on_device();
        if !may || !self.is_datagram() || group.ip().is_unspecified() {
            return Err(Errno::INVAL);
        }
        if self.memberships.len() >= MAX_MEMBERSHIPS {
            return Err(Errno::NOMEM);
        }
        let event = event(self, &membership)?;
        self.memberships.push((group, membership));
        self.channel.push(event);
        Ok(())
    }

    /// Removes the latest membership with this address, and its event if C has not taken the event
    /// yet.
    pub(super) fn leave(&mut self, group: &SocketAddr) -> Result<Arc<Membership>, Errno> {
        let place = self.memberships.iter().rposition(|(joined, _)| joined == group);
        let (_, membership) = self.memberships.remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        let of_membership = |pending: &Pending| match &pending.body {
            Body::Multicast(joined, _) => Arc::ptr_eq(joined, &membership),
            _ => false,
        };
        self.channel.queue.retract(of_membership, || membership.ledger.close());
        Ok(membership)
    }

    /// Removes the id's queued events from its channel and returns them. `seal` runs before further
    /// events can be queued.
    pub(super) fn take_events<R>(&self, seal: impl FnOnce() -> R) -> (Vec<Pending>, R) {
        let is_ours = |pending: &Pending| Arc::ptr_eq(&pending.target, &self.target);
        self.channel.queue.extract(is_ours, seal)
    }

    /// Moves the id and its queued events to another channel. Returns the number of events that C
    /// has taken before.
    pub(super) fn migrate(&mut self, channel: Arc<Channel>) -> u32 {
        let (events, taken) = self.take_events(|| self.target.ledger.reported());
        self.channel = channel;
        events.into_iter().for_each(|event| self.channel.push(event));
        taken
    }

    /// The agreed parameters for a transition of the queue pair to INIT (`for_init`), RTR or RTS.
    /// `None` without a machine, and for datagram ids.
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
