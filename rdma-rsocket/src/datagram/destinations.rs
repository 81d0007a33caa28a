//! The peers of a datagram socket, and the paths to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{rdma_cm_event_type as Kind, rdma_port_space};

use super::queue::LocalQueue;
use crate::verbs::{Handle, Id};
use crate::wait::Polled;

/// The most peers that a socket remembers.
const MOST: usize = 1024;
/// The most paths that are resolved at once. Meanwhile data goes over UDP.
const MOST_ROUTES: usize = 16;
/// Milliseconds of the resolution of an address or a route.
const TIMEOUT: c_int = 2000;

/// A peer.
#[derive(Debug)]
pub(super) struct Destination {
    /// The local queue pair for it.
    pub(super) queue: usize,
    /// Path and queue pair, once the peer has named it.
    pub(super) target: Option<(Arc<Handle>, u32)>,
    route: Option<Route>,
    used: u64,
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

    /// Adds a peer. The one that was not used for the longest time is forgotten if there are too
    /// many.
    pub(super) fn add(&mut self, address: SocketAddr, queue: usize) {
        if self.known.len() >= MOST {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used).map(|(address, _)| *address);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        self.clock += 1;
        self.known.insert(address, Destination { queue, target: None, route: None, used: self.clock });
    }

    /// Learns the queue pair of a peer, and begins to resolve the path to it if it is new.
    pub(super) fn learn(&mut self, address: SocketAddr, pair: u32, queue: &LocalQueue) -> Result<(), Errno> {
        let routes = self.known.values().filter(|known| known.route.is_some()).count();
        let Some(known) = self.known.get_mut(&address) else { return Ok(()) };
        if let Some(route) = &mut known.route {
            route.pair = pair;
        } else if known.target.as_ref().is_none_or(|(_, target)| *target != pair) && routes < MOST_ROUTES {
            let mut id = Id::new(queue.id.libraries(), rdma_port_space::RDMA_PS_UDP)?;
            let mut source = queue.address;
            source.set_port(0);
            id.resolve_address(Some(source), address, TIMEOUT)?;
            (known.route, known.target) = (Some(Route { id, pair }), None);
        }
        Ok(())
    }

    /// Processes events of the paths that are being resolved. Returns whether there were any.
    pub(super) fn take_events(&mut self, queues: &[LocalQueue]) -> bool {
        let mut is_changed = false;
        for known in self.known.values_mut() {
            while let Some(route) = &mut known.route {
                let result = match route.id.next_event() {
                    Ok(None) => break,
                    Ok(Some(event)) => route.advance(event.kind, &queues[known.queue].id),
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
