//! Nodes: a device, its memory and its connections.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::connection::{Connection, Core, Draining};
use super::driver::Driver;
use super::exchange::Events;
use super::failure::{Failure, FailureKind};
use super::listener::{Listener, Requests};
use super::mailbox::Mailbox;
use super::options::{ListenOptions, NodeOptions};
use super::protocol::Hello;
use super::read_buffers::ReadBuffers;
use super::receives::ReceivePool;
use super::{connect, listener};
use crate::cm::IdKey;
use crate::context::Context;
use crate::cq::{CompletionChannel, CompletionQueue};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::pd::ProtectionDomain;
use crate::qp::ring::Panics;
use crate::wait::Watch;

/// A device with the connections of a program. Clones are handles to the same node.
///
/// All work happens in the node's [`Driver`], which a thread or a task must run.
#[derive(Clone)]
pub struct Node {
    handle: Arc<Handle>,
}

/// Tells the driver when the last handle is gone.
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().has_handles = false;
        self.shared.watch.ring();
    }
}

/// The part of a node that its connections and its driver share.
pub(super) struct Shared {
    pub(super) options: NodeOptions,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) events: Events,
    pub(super) watch: Watch,
    pub(super) read_buffers: Arc<ReadBuffers>,
    table: Mutex<Table>,
}

/// The connections of a node, and the ids of the connection manager.
pub(super) struct Table {
    cores: HashMap<u32, Arc<Core>>,
    /// The connections of queue pairs that take their receives from a pool.
    keys: HashMap<u32, u32>,
    /// Connections that have ended and whose shared receives may still complete.
    draining: HashMap<u32, Draining>,
    pools: HashMap<u32, Weak<ReceivePool>>,
    routes: HashMap<IdKey, Route>,
    last_key: u32,
    /// Connections that have ended and are to be disconnected.
    ended: Vec<u32>,
    next_deadline: Option<Instant>,
    pub(super) has_handles: bool,
    pub(super) is_driven: bool,
}

/// The user of a receive of a pool.
pub(super) enum PoolUser {
    Connection(Arc<Core>),
    /// A connection that has ended: the receive belongs to no stake any more.
    Ended(Arc<ReceivePool>),
    /// A queue pair that is gone, with its stake.
    None(Option<Arc<ReceivePool>>),
}

/// The receiver of the events of an id.
#[derive(Clone)]
pub(super) enum Route {
    /// An attempt to connect or to accept.
    Mailbox(Arc<Mailbox>),
    Listener(Arc<Requests>),
    Connection(Arc<Core>),
}

impl Node {
    /// Creates a node on a device, and its driver.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for options out of range; errors of the device, of its connection manager,
    /// and of descriptors; `NotSupported` for an exchange over TCP on iWARP.
    pub fn new(context: &Context, options: &NodeOptions) -> Result<(Self, Driver)> {
        if let Err(reason) = options.hello(false, false).check() {
            tracing::debug!(reason, "options of a node are out of range");
            return Err(Error::new(Operation::CreateQp, ErrorKind::InvalidInput));
        }
        let channel = context.create_completion_channel()?;
        let entries = options.completions(context.device_attr().max_cqe());
        let cq = context.cq_builder(entries).channel(&channel).build()?;
        let events = Events::new(context, options)?;
        let watch = Watch::new(&[channel.as_fd(), events.as_fd()])?;
        let table = Mutex::new(Table {
            cores: HashMap::new(),
            keys: HashMap::new(),
            draining: HashMap::new(),
            pools: HashMap::new(),
            routes: HashMap::new(),
            last_key: 0,
            ended: Vec::new(),
            next_deadline: None,
            has_handles: true,
            is_driven: true,
        });
        let pd = context.alloc_pd()?;
        let (options, read_buffers) = (options.clone(), Arc::default());
        let shared = Arc::new(Shared { options, pd, cq, channel, events, watch, read_buffers, table });
        let driver = Driver::new(&shared);
        Ok((Self { handle: Arc::new(Handle { shared }) }, driver))
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// `Refused` with the listener's reason, or if nothing listens at the address; `Timeout`;
    /// `DriverGone`; `Local` for errors of the device, and if the node has no room for another
    /// connection.
    pub async fn connect(&self, to: SocketAddr) -> Result<Connection, Failure> {
        connect::connect(&self.handle.shared, to).await
    }

    /// Listens at an address. Port 0 chooses a free port.
    ///
    /// # Errors
    ///
    /// As for [`cm::blocking::Listener::bind`](crate::cm::blocking::Listener::bind). With shared
    /// receives `InvalidInput` for fewer than 5 or more than the device supports, `NotSupported` if
    /// the device has none, and `OutOfMemory`.
    pub fn listen(&self, at: SocketAddr, options: &ListenOptions) -> Result<Listener> {
        listener::listen(&self.handle, at, options)
    }

    /// The protection domain of the node's connections, for the memory of one-sided operations.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.handle.shared.pd
    }

    /// The number of ids whose events have a receiver.
    #[cfg(test)]
    pub(super) fn routes(&self) -> usize {
        self.handle.shared.lock().routes.len()
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Bytes of the buffers that are kept for reads of offers.
    #[cfg(test)]
    pub(super) fn read_buffers_len(&self) -> usize {
        self.handle.shared.read_buffers.len()
    }

    /// The number of connections that have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.handle.shared.lock().cores.len()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("options", &self.handle.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    /// The HELLO of a connection that shares receives, or does not.
    pub(super) fn hello(&self, shares: bool) -> Hello {
        let context = self.pd.context();
        let limits = context.device_attr();
        let has_reads = limits.max_qp_rd_atom() > 0 && limits.max_qp_init_rd_atom() > 0;
        self.options.hello(has_reads && !context.capabilities().read_needs_exposed_sink, shares)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new connection.
    pub(super) fn new_key(&self) -> u32 {
        let mut table = self.lock();
        loop {
            table.last_key = table.last_key.wrapping_add(1);
            let key = table.last_key;
            let is_used = table.cores.contains_key(&key) || table.draining.contains_key(&key);
            if !is_used && !table.pools.contains_key(&key) {
                return key;
            }
        }
    }

    /// Adds a connection whose requests may complete from now on. Those of shared receives complete
    /// with the number of its queue pair.
    pub(super) fn add(&self, core: &Arc<Core>) -> Result<(), Failure> {
        let mut table = self.lock();
        if !table.is_driven {
            return Err(Failure::new(FailureKind::DriverGone));
        }
        table.cores.insert(core.key, Arc::clone(core));
        table.keys.extend(core.sharing_qpn.map(|qpn| (qpn, core.key)));
        Ok(())
    }

    /// Creates the shared receives of a listener.
    pub(super) fn new_pool(&self, count: u32) -> Result<Arc<ReceivePool>> {
        let key = self.new_key();
        let pool = Arc::new(ReceivePool::new(self, key, count)?);
        let mut table = self.lock();
        table.pools.retain(|_, pool| pool.strong_count() > 0);
        table.pools.insert(key, Arc::downgrade(&pool));
        drop(table);
        Ok(pool)
    }

    /// The user of a receive of a pool that has completed on a queue pair.
    pub(super) fn pool_user(&self, pool: u32, qpn: u32) -> PoolUser {
        let mut table = self.lock();
        let pool = table.pools.get(&pool).and_then(Weak::upgrade);
        let Some(key) = table.keys.get(&qpn).copied() else { return PoolUser::None(pool) };
        if let Some(core) = table.cores.get(&key) {
            return PoolUser::Connection(Arc::clone(core));
        }
        match table.draining.get_mut(&key) {
            Some(draining) => {
                draining.stake.taken();
                PoolUser::Ended(Arc::clone(draining.stake.pool()))
            }
            None => PoolUser::None(pool),
        }
    }

    /// Destroys the queue pair of a connection that has ended: nothing completes on it any more.
    pub(super) fn drained(&self, key: u32) {
        let draining = {
            let mut table = self.lock();
            table.keys.retain(|_, known| *known != key);
            table.draining.remove(&key)
        };
        drop(draining);
    }

    pub(super) fn core(&self, key: u32) -> Option<Arc<Core>> {
        self.lock().cores.get(&key).cloned()
    }

    /// Sets the receiver of the events of an id.
    pub(super) fn set_route(&self, id: IdKey, route: Route) -> Result<(), Failure> {
        let mut table = self.lock();
        if !table.is_driven {
            return Err(Failure::new(FailureKind::DriverGone));
        }
        table.routes.insert(id, route);
        Ok(())
    }

    /// Makes a connection the receiver of the events of an id, unless the connection has ended.
    pub(super) fn hand_over(&self, id: IdKey, core: &Arc<Core>) -> Result<(), Failure> {
        let mut table = self.lock();
        if !table.is_driven {
            return Err(Failure::new(FailureKind::DriverGone));
        }
        if table.cores.contains_key(&core.key) {
            table.routes.insert(id, Route::Connection(Arc::clone(core)));
        } else {
            table.routes.remove(&id);
        }
        Ok(())
    }

    pub(super) fn route(&self, id: IdKey) -> Option<Route> {
        self.lock().routes.get(&id).cloned()
    }

    pub(super) fn remove_route(&self, id: IdKey) {
        // Dropped after the lock is released: a listener's requests are rejected, which may log.
        let route = self.lock().routes.remove(&id);
        drop(route);
    }

    /// Wakes the driver by a time.
    pub(super) fn note_deadline(&self, at: Instant) {
        let mut table = self.lock();
        if table.next_deadline.is_none_or(|next| at < next) {
            table.next_deadline = Some(at);
            drop(table);
            self.watch.ring();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lock().next_deadline
    }

    /// Tells the driver that a connection has ended.
    pub(super) fn note_end(&self, key: u32) {
        self.lock().ended.push(key);
        self.watch.ring();
    }

    /// Disconnects and removes the connections that have ended.
    pub(super) fn remove_ended(&self) {
        let ended: Vec<_> = {
            let mut table = self.lock();
            let keys = std::mem::take(&mut table.ended);
            keys.iter().filter_map(|key| table.cores.remove(key)).collect()
        };
        let mut panics = Panics::default();
        for core in ended {
            panics.catch(|| self.disconnect(&core));
        }
        panics.resume();
    }

    /// Disconnects a connection that has ended.
    fn disconnect(&self, core: &Core) {
        // An attempt to accept may still wait for its connection.
        if let (Some(Route::Mailbox(mailbox)), Some(failure)) = (self.route(core.id), core.failure()) {
            mailbox.fail(failure);
        }
        self.remove_route(core.id);
        // Completions of the queue pair are delivered by this thread, after the insertion.
        match core.disconnect() {
            Some(draining) => drop(self.lock().draining.insert(core.key, draining)),
            None if core.sharing_qpn.is_some() => self.drained(core.key),
            None => {}
        }
    }

    /// Does all that is due.
    pub(super) fn handle_timeouts(&self, now: Instant) {
        let (cores, mailboxes) = {
            let mut table = self.lock();
            if table.next_deadline.is_none_or(|next| now < next) {
                return;
            }
            table.next_deadline = None;
            let cores: Vec<_> = table.cores.values().cloned().collect();
            (cores, table.mailboxes())
        };
        // A task that panics when it is woken must not keep others from their timeouts.
        let mut panics = Panics::default();
        for core in cores {
            panics.catch(|| core.handle_timeout());
        }
        if let Events::Tcp(sockets) = &self.events {
            sockets.handle_timeouts(now).into_iter().for_each(|deadline| self.note_deadline(deadline));
        }
        for mailbox in mailboxes {
            panics.catch(|| mailbox.handle_timeout(now).into_iter().for_each(|deadline| self.note_deadline(deadline)));
        }
        panics.resume();
    }

    /// Fails everything: the driver is gone.
    pub(super) fn stop(&self) {
        let (cores, routes) = {
            let mut table = self.lock();
            table.is_driven = false;
            let routes: Vec<_> = table.routes.drain().map(|(_, route)| route).collect();
            (table.cores.values().cloned().collect::<Vec<_>>(), routes)
        };
        let failure = Failure::new(FailureKind::DriverGone);
        // A task that panics when it is woken must not leave others waiting.
        let mut panics = Panics::default();
        for core in cores {
            panics.catch(|| core.fail(failure.clone()));
        }
        for route in routes {
            panics.catch(|| match route {
                Route::Mailbox(mailbox) => mailbox.fail(failure.clone()),
                Route::Listener(requests) => requests.fail(failure.clone()),
                Route::Connection(_) => {}
            });
        }
        panics.catch(|| self.remove_ended());
        let draining = std::mem::take(&mut self.lock().draining);
        panics.catch(|| drop(draining));
        panics.resume();
    }

    /// Whether neither a handle nor a connection is left.
    pub(super) fn is_idle(&self) -> bool {
        let table = self.lock();
        !table.has_handles && table.cores.is_empty()
    }
}

impl Table {
    fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        let mailbox =
            |route: &Route| if let Route::Mailbox(mailbox) = route { Some(Arc::clone(mailbox)) } else { None };
        self.routes.values().filter_map(mailbox).collect()
    }
}
