//! The tables of a driver of a node: its connections, and the receivers of events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rdma::cm::IdKey;
use rdma::{MadeIn, Result, Verb};

use super::connection::Core;
use super::exchange::Events;
use super::failure::{Failure, FailureKind};
use super::link::Draining;
use super::load;
use super::mailbox::Mailbox;
use super::receives::ReceivePool;
use super::requests::Requests;
use super::shared::Shared;
use super::shutdown::{CutOff, Shutdown};
use super::stats::NodeStats;
use super::waiters::{Place, Task};
use crate::panics::Panics;

/// The part of a node that its handles and one of its drivers share.
pub(super) struct Tables {
    pub(super) shared: Arc<Shared>,
    pub(super) events: Events,
    entries: Mutex<Entries>,
    made_in: MadeIn,
}

struct Entries {
    cores: HashMap<u32, Arc<Core>>,
    /// The connections of queue pairs that take their receives from a pool.
    keys: HashMap<u32, u32>,
    /// Connections that have ended and whose shared receives may still complete.
    draining: HashMap<u32, Draining>,
    pools: HashMap<u32, Weak<ReceivePool>>,
    routes: HashMap<IdKey, Route>,
    last_key: u32,
    has_handles: bool,
    /// The reason why nothing works any more: the driver is gone, or the device has failed.
    ended: Option<Failure>,
    shutdown: Option<Shutdown>,
    /// The statistics of connections that have ended, and the number of all connections.
    done: NodeStats,
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

/// Tells the drivers when the last handle is gone.
pub(super) struct Handle {
    /// Those of the first driver.
    first: Arc<Tables>,
    /// Those of the other drivers.
    others: Box<[Arc<Tables>]>,
    /// Connections that were begun: drivers with equal loads take turns.
    turn: AtomicUsize,
}

impl Handle {
    pub(super) fn new(first: Arc<Tables>, others: Vec<Arc<Tables>>) -> Self {
        Self { first, others: others.into(), turn: AtomicUsize::new(0) }
    }

    /// The tables of each driver.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Tables>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The tables of the first driver.
    pub(super) fn first(&self) -> &Arc<Tables> {
        &self.first
    }

    /// The tables of the driver that takes the next connection.
    pub(super) fn choose(&self) -> &Arc<Tables> {
        if self.others.is_empty() {
            return &self.first;
        }
        let mut all: Vec<_> = self.all().collect();
        load::order(&mut all, self.turn.fetch_add(1, Ordering::Relaxed), |&tables| &tables.shared.load);
        all.first().copied().unwrap_or(&self.first)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.first.is_forked() {
            return;
        }
        for tables in self.all() {
            tables.lock().has_handles = false;
            tables.shared.bell.ring();
        }
    }
}

impl Tables {
    pub(super) fn new(shared: Shared, events: Events) -> Self {
        let entries = Mutex::new(Entries {
            cores: HashMap::new(),
            keys: HashMap::new(),
            draining: HashMap::new(),
            pools: HashMap::new(),
            routes: HashMap::new(),
            last_key: 0,
            has_handles: true,
            ended: None,
            shutdown: None,
            done: NodeStats::default(),
        });
        Self { shared: Arc::new(shared), events, entries, made_in: MadeIn::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is a forked child of the node's: it must not wait for a lock.
    pub(super) fn is_forked(&self) -> bool {
        self.made_in.is_forked()
    }

    /// Fails in a forked child.
    pub(super) fn check(&self, operation: Verb) -> Result<()> {
        self.made_in.check(operation)
    }

    /// Keeps the locks of the node while `work` runs.
    #[cfg(test)]
    pub(super) fn locked<R>(&self, work: impl FnOnce() -> R) -> R {
        let _sockets = if let Events::Tcp(sockets) = &self.events { Some(sockets.locked()) } else { None };
        let _entries = self.lock();
        work()
    }

    /// The number of connections that have not ended; 0 in a forked child.
    pub(super) fn connections(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.lock().cores.len()
    }

    /// What the connections of this driver have done; nothing in a forked child.
    pub(super) fn stats(&self) -> NodeStats {
        if self.is_forked() {
            return NodeStats::default();
        }
        // A connection that ends meanwhile is counted once: as one that was there.
        let (mut stats, cores) = {
            let entries = self.lock();
            (entries.done, entries.cores.values().cloned().collect::<Vec<_>>())
        };
        stats.connections = cores.len();
        cores.iter().for_each(|core| stats.traffic.add(&core.stats()));
        stats.completions = self.shared.cq.stats();
        stats
    }

    /// The number of ids whose events have a receiver.
    #[cfg(test)]
    pub(super) fn routes(&self) -> usize {
        self.lock().routes.len()
    }

    /// A number for a new connection.
    pub(super) fn new_key(&self) -> u32 {
        let mut entries = self.lock();
        loop {
            entries.last_key = entries.last_key.wrapping_add(1);
            let key = entries.last_key;
            let is_used = entries.cores.contains_key(&key) || entries.draining.contains_key(&key);
            if !is_used && !entries.pools.contains_key(&key) {
                return key;
            }
        }
    }

    /// Adds a connection whose requests may complete from now on. Those of shared receives complete
    /// with the number of its queue pair.
    pub(super) fn add(&self, core: &Arc<Core>) -> Result<(), Failure> {
        let mut entries = self.lock();
        entries.check()?;
        entries.cores.insert(core.key, Arc::clone(core));
        entries.done.opened += 1;
        entries.keys.extend(core.sharing_qpn.map(|qpn| (qpn, core.key)));
        Ok(())
    }

    /// Creates the shared receives of a listener.
    pub(super) fn new_pool(&self, count: u32) -> Result<Arc<ReceivePool>> {
        let (key, shared) = (self.new_key(), &self.shared);
        let size = shared.options.buffer_size();
        let pool = Arc::new(ReceivePool::new(&shared.domain.pd, &shared.cq, key, count, size)?);
        let mut entries = self.lock();
        entries.pools.retain(|_, pool| pool.strong_count() > 0);
        entries.pools.insert(key, Arc::downgrade(&pool));
        drop(entries);
        Ok(pool)
    }

    /// The user of a receive of a pool that has completed on a queue pair.
    pub(super) fn pool_user(&self, pool: u32, qpn: u32) -> PoolUser {
        let mut entries = self.lock();
        let pool = entries.pools.get(&pool).and_then(Weak::upgrade);
        let Some(key) = entries.keys.get(&qpn).copied() else { return PoolUser::None(pool) };
        if let Some(core) = entries.cores.get(&key) {
            return PoolUser::Connection(Arc::clone(core));
        }
        match entries.draining.get_mut(&key) {
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
            let mut entries = self.lock();
            entries.keys.retain(|_, known| *known != key);
            entries.draining.remove(&key)
        };
        drop(draining);
    }

    pub(super) fn core(&self, key: u32) -> Option<Arc<Core>> {
        self.lock().cores.get(&key).cloned()
    }

    /// Sets the receiver of the events of an id.
    pub(super) fn set_route(&self, id: IdKey, route: Route) -> Result<(), Failure> {
        self.check(Verb::CreateId)?;
        let mut entries = self.lock();
        entries.check()?;
        entries.routes.insert(id, route);
        Ok(())
    }

    /// Makes a connection the receiver of the events of an id, unless the connection has ended.
    pub(super) fn hand_over(&self, id: IdKey, core: &Arc<Core>) -> Result<(), Failure> {
        let mut entries = self.lock();
        entries.check()?;
        if entries.cores.contains_key(&core.key) {
            entries.routes.insert(id, Route::Connection(Arc::clone(core)));
        } else {
            entries.routes.remove(&id);
        }
        Ok(())
    }

    pub(super) fn route(&self, id: IdKey) -> Option<Route> {
        self.lock().routes.get(&id).cloned()
    }

    pub(super) fn remove_route(&self, id: IdKey) {
        if self.is_forked() {
            return;
        }
        // Dropped after the lock is released: a listener's requests are rejected, which may log.
        let route = self.lock().routes.remove(&id);
        drop(route);
    }

    /// Disconnects and removes the connections that have ended.
    pub(super) fn remove_ended(&self) {
        let keys = self.shared.take_ended();
        if keys.is_empty() {
            return;
        }
        let ended: Vec<_> = {
            let mut entries = self.lock();
            let ended: Vec<_> = keys.iter().filter_map(|key| entries.cores.remove(key)).collect();
            for core in &ended {
                entries.done.count_ended(core.has_failed(), &core.stats());
            }
            if let Some(shutdown) = &mut entries.shutdown {
                let cut_off = ended.iter().filter(|core| core.is_cut_off());
                shutdown.cut_off.extend(cut_off.map(|core| CutOff { peer_addr: core.peer_addr }));
            }
            ended
        };
        let mut panics = Panics::default();
        for core in ended {
            panics.catch(|| self.disconnect(&core));
        }
        for waker in self.lock().take_wakers() {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }

    /// Refuses new connections, and ends those that are there: by a time if they have not ended
    /// before. The sooner time of several counts.
    pub(super) fn shut_down(&self, by: Instant) {
        let (cores, routes, by) = {
            let mut entries = self.lock();
            self.shared.load.end();
            let shutdown = entries.shutdown.get_or_insert_with(|| Shutdown::new(by));
            shutdown.by = shutdown.by.min(by);
            let by = shutdown.by;
            let routes: Vec<_> = entries.routes.values().cloned().collect();
            (entries.cores.values().cloned().collect::<Vec<_>>(), routes, by)
        };
        let mut panics = Panics::default();
        for route in routes {
            let closed = Failure::new(FailureKind::Closed);
            panics.catch(|| match route {
                Route::Mailbox(mailbox) => mailbox.fail(closed),
                Route::Listener(requests) => requests.fail(closed),
                Route::Connection(_) => {}
            });
        }
        for core in cores {
            panics.catch(|| core.shut_down(by));
        }
        panics.resume();
    }

    /// Waits until no connection is left after a [`shut_down`](Self::shut_down); returns those that
    /// were cut off.
    pub(super) fn poll_shut_down(
        &self,
        place: &mut Option<Place>,
        cx: &Context<'_>,
    ) -> Poll<Result<Vec<CutOff>, Failure>> {
        self.check(Verb::Disconnect)?;
        let mut stale = None;
        Task::poll(cx.waker(), true, |task| {
            let mut entries = self.lock();
            let is_over = entries.cores.is_empty();
            let Some(shutdown) = &mut entries.shutdown else { return Poll::Ready(Ok(Vec::new())) };
            if is_over {
                stale = shutdown.waiters.leave(place);
                return Poll::Ready(Ok(shutdown.cut_off.clone()));
            }
            shutdown.waiters.wait(place, task);
            Poll::Pending
        })
    }

    /// Gives up the place of a task that waits for the end of a shutdown.
    pub(super) fn leave_shutdown(&self, place: &mut Option<Place>) {
        if place.is_none() || self.is_forked() {
            return;
        }
        let stale = self.lock().shutdown.as_mut().and_then(|shutdown| shutdown.waiters.leave(place));
        drop(stale);
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

    /// Does all that is due. `cores` is an empty list, whose memory is used.
    pub(super) fn handle_timeouts(&self, now: Instant, cores: &mut Vec<Arc<Core>>) {
        if !self.shared.take_due(now) {
            return;
        }
        let mailboxes = {
            let entries = self.lock();
            cores.extend(entries.cores.values().cloned());
            entries.mailboxes()
        };
        // A task that panics when it is woken must not keep others from their timeouts.
        let mut panics = Panics::default();
        for core in cores.drain(..) {
            panics.catch(|| core.handle_timeout());
        }
        if let Events::Tcp(sockets) = &self.events {
            sockets.handle_timeouts(now).into_iter().for_each(|deadline| self.shared.note_deadline(deadline));
        }
        for mailbox in mailboxes {
            panics.catch(|| {
                mailbox.handle_timeout(now).into_iter().for_each(|deadline| self.shared.note_deadline(deadline));
            });
        }
        panics.resume();
    }

    /// Fails everything, also what comes later. Only the first reason counts.
    pub(super) fn stop(&self, failure: Failure) {
        let (cores, routes, failure) = {
            let mut entries = self.lock();
            self.shared.load.end();
            let failure = entries.ended.get_or_insert(failure).clone();
            let routes: Vec<_> = entries.routes.drain().map(|(_, route)| route).collect();
            (entries.cores.values().cloned().collect::<Vec<_>>(), routes, failure)
        };
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
        panics.resume();
    }

    /// Drops what waits for completions, which nobody delivers any more.
    pub(super) fn abandon(&self) {
        let draining = std::mem::take(&mut self.lock().draining);
        drop(draining);
    }

    /// The connection of a queue pair.
    pub(super) fn core_of_queue_pair(&self, qpn: u32) -> Option<Arc<Core>> {
        let cores: Vec<_> = self.lock().cores.values().cloned().collect();
        cores.into_iter().find(|core| core.qpn() == Some(qpn))
    }

    /// Whether neither a handle nor a connection is left.
    pub(super) fn is_idle(&self) -> bool {
        let entries = self.lock();
        !entries.has_handles && entries.cores.is_empty()
    }
}

impl Entries {
    /// Fails once nothing works any more, or the node shuts down.
    fn check(&self) -> Result<(), Failure> {
        let closed = || self.shutdown.as_ref().map(|_| Failure::new(FailureKind::Closed));
        self.ended.clone().or_else(closed).map_or(Ok(()), Err)
    }

    /// The tasks to wake because a shutdown is complete.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let is_over = self.cores.is_empty();
        self.shutdown.as_mut().filter(|_| is_over).map(Shutdown::take_wakers).unwrap_or_default()
    }

    fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        let mailbox =
            |route: &Route| if let Route::Mailbox(mailbox) = route { Some(Arc::clone(mailbox)) } else { None };
        self.routes.values().filter_map(mailbox).collect()
    }
}
