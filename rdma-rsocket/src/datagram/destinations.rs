//! The peers of a datagram socket, and the paths to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{rdma_cm_event_type as Kind, rdma_port_space};

use super::locals::Locals;
use super::queue::LocalQueue;
use crate::verbs::{Handle, Id};
use crate::wait::Polled;

/// The most peers that a socket remembers.
const MOST: usize = 1024;
/// The most paths that are resolved at once. Meanwhile data goes over UDP.
const MOST_ROUTES: usize = 16;
/// Milliseconds of the resolution of an address or a route.
const TIMEOUT: c_int = 2000;
/// How long datagrams go to the queue pair that a peer has named before one goes over UDP again.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// A peer.
#[derive(Debug)]
pub(super) struct Destination {
    /// The local queue pair for it.
    pub(super) queue: usize,
    /// Path and queue pair, once the peer has named it.
    pub(super) target: Option<(Arc<Handle>, u32)>,
    route: Option<Route>,
    used: u64,
    /// When the peer last named its queue pair, or was last asked to.
    heard: Instant,
    /// The peer was asked, and has not answered.
    is_asked: bool,
}

/// A path that is being resolved.
#[derive(Debug)]
struct Route {
    id: Id,
    /// The queue pair that the peer has named.
    pair: u32,
}

#[derive(Debug, Default)]
pub(super) struct Destinations {
    known: BTreeMap<SocketAddr, Destination>,
    /// Counts uses.
    clock: u64,
}

impl Destinations {
    pub(super) fn get(&mut self, address: SocketAddr) -> Option<&mut Destination> {
        let known = self.known.get_mut(&address)?;
        self.clock += 1;
        known.used = self.clock;
        Some(known)
    }

    /// Path and queue pair of a peer for the next send. None if they are unknown, or if it is time
    /// to ask for them again.
    pub(super) fn target(&mut self, address: SocketAddr) -> Option<&(Arc<Handle>, u32)> {
        let known = self.known.get_mut(&address)?;
        if known.heard.elapsed() >= ASK_AFTER {
            (known.heard, known.is_asked) = (Instant::now(), true);
            return None;
        }
        known.target.as_ref()
    }

    /// Whether an answer of the peer is awaited: it is unknown, or was asked.
    pub(super) fn is_asked(&self, address: SocketAddr) -> bool {
        self.known.get(&address).is_none_or(|known| known.target.is_none() || known.is_asked)
    }

    /// The peers of a local queue pair.
    pub(super) fn of_queue(&self, queue: usize) -> Vec<SocketAddr> {
        self.known.iter().filter(|(_, known)| known.queue == queue).map(|(address, _)| *address).collect()
    }

    /// Forgets the paths from a local queue pair.
    pub(super) fn forget_paths(&mut self, queue: usize) {
        let known = self.known.values_mut().filter(|known| known.queue == queue);
        known.for_each(|known| (known.route, known.target) = (None, None));
    }

    /// Adds a peer. If there are too many, one without a path is forgotten, or the one that was not
    /// used for the longest time.
    pub(super) fn add(&mut self, address: SocketAddr, queue: usize) {
        if self.known.len() >= MOST {
            let oldest = self
                .known
                .iter()
                .min_by_key(|(_, known)| (known.target.is_some(), known.used))
                .map(|(address, _)| *address);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        self.clock += 1;
        let (used, heard) = (self.clock, Instant::now());
        let added = Destination { queue, target: None, route: None, used, heard, is_asked: false };
        self.known.insert(address, added);
    }

    /// Learns the queue pair of a peer, and begins to resolve the path to it if it is new.
    pub(super) fn learn(&mut self, address: SocketAddr, pair: u32, queue: &LocalQueue) -> Result<(), Errno> {
        let routes = self.known.values().filter(|known| known.route.is_some()).count();
        let Some(known) = self.known.get_mut(&address) else { return Ok(()) };
        (known.heard, known.is_asked) = (Instant::now(), false);
        if known.target.as_ref().is_some_and(|(_, target)| *target != pair) {
            // Another socket has the peer's port now.
            known.target = None;
        }
        if let Some(route) = &mut known.route {
            route.pair = pair;
        } else if known.target.is_none() && routes < MOST_ROUTES {
            let mut id = Id::new(queue.id.libraries(), rdma_port_space::RDMA_PS_UDP)?;
            let mut source = queue.address;
            source.set_port(0);
            id.resolve_address(Some(source), address, TIMEOUT)?;
            known.route = Some(Route { id, pair });
        }
        Ok(())
    }

    /// Processes events of the paths that are being resolved. Returns whether there were any.
    pub(super) fn take_events(&mut self, locals: &mut Locals<LocalQueue>) -> bool {
        let mut is_changed = false;
        for known in self.known.values_mut() {
            while let Some(route) = &mut known.route {
                let result = match route.id.next_event() {
                    Ok(None) => break,
                    Ok(Some(event)) => locals.get(known.queue).and_then(|queue| route.advance(event.kind, &queue.id)),
                    Err(errno) => Err(errno),
                };
                is_changed = true;
                match result {
                    Ok(None) => (),
                    Ok(Some(target)) => (known.route, known.target) = (None, Some(target)),
                    // The next packet of the peer tries again.
                    Err(_) => known.route = None,
                }
            }
        }
        is_changed
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = Polled> {
        self.known.values().filter_map(|known| known.route.as_ref()).map(|route| Polled::readable(route.id.fd()))
    }
}

impl Route {
    /// Processes an event. Returns the path once it is resolved.
    fn advance(&mut self, kind: Kind, queue: &Id) -> Result<Option<(Arc<Handle>, u32)>, Errno> {
        match kind {
            Kind::RDMA_CM_EVENT_ADDR_RESOLVED => self.id.resolve_route(TIMEOUT).map(|()| None),
            Kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                let handle = Handle::new(queue, &self.id)?;
                Ok(Some((Arc::new(handle), self.pair)))
            }
            _ => Err(Errno::ENETUNREACH),
        }
    }
}
