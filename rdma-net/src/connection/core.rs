//! The shared part of a connection: its state behind a lock.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rdma::cm::IdKey;
use rdma::{Buffer, Failed, MadeIn, ProtectionDomain, Result, Verb};
use tracing::{Span, field};

use super::entries::EntryLists;
use super::fetched::FetchBuffers;
use super::flow::{Arrivals, Buffers, Flow, Memory, Offers};
use super::operations::{Operations, WORD};
use crate::failure::{Failure, FailureKind};
use crate::link::{Draining, Link, Remains};
use crate::load::LoadShare;
use crate::options::NodeOptions;
use crate::panics::Panics;
use crate::protocol::{MAX_OFFER_LEN, Protocol};
use crate::receives::Stake;
use crate::requests::Ticket;
use crate::shared::{Domain, Shared};
use crate::stats::ConnectionStats;
use crate::waiters::{Place, Task};

/// A connection, as its handles and the driver share it.
pub(crate) struct Core {
    pub(crate) key: u32,
    pub(crate) id: IdKey,
    /// The number of the queue pair, if it takes its receives from a pool.
    pub(crate) sharing_qpn: Option<u32>,
    /// The port of the queue pair.
    port: u8,
    pub(super) local_addr: Option<SocketAddr>,
    pub(crate) peer_addr: Option<SocketAddr>,
    pub(super) max_payload: usize,
    pub(super) max_message: u64,
    /// Whether the peer reads offers.
    pub(super) offers: bool,
    /// Whether the peer takes notifications.
    pub(super) notifies: bool,
    /// Operations that may be in flight.
    pub(super) max_operations: u32,
    /// Longer messages are offered.
    pub(super) eager_limit: usize,
    pub(super) senders: AtomicUsize,
    /// Whether messages waited for the application when the lock was released: a hint.
    pub(super) has_messages: AtomicBool,
    /// Whether a sender needed not wait when the lock was released: a hint.
    pub(super) may_send: AtomicBool,
    /// Whether the connection was closed without waiting for the peer.
    is_cut_off: AtomicBool,
    pub(super) fetch_buffers: Arc<FetchBuffers>,
    pub(super) batches: EntryLists,
    /// The domain of the node, or the connection's own.
    pub(super) pd: ProtectionDomain,
    made_in: MadeIn,
    flow: Mutex<Flow>,
    shared: Arc<Shared>,
    /// The place among the connections of a listener.
    _ticket: Option<Ticket>,
    /// The place among the connections of a driver.
    _load: LoadShare,
    /// The span of the connection's events.
    span: Span,
}

/// The parts of a new connection.
pub(crate) struct Parts {
    pub(crate) key: u32,
    pub(crate) id: IdKey,
    /// The port of the queue pair.
    pub(crate) port: u8,
    pub(crate) local_addr: Option<SocketAddr>,
    pub(crate) peer_addr: Option<SocketAddr>,
    pub(crate) protocol: Protocol,
    pub(crate) pool: Pool,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) load: LoadShare,
    /// The part in a pool of shared receives, and the number of the queue pair.
    pub(crate) sharing: Option<(Stake, u32)>,
}

impl Core {
    pub(crate) fn new(shared: &Arc<Shared>, parts: Parts) -> Arc<Self> {
        let Parts { key, id, port, local_addr, peer_addr, protocol, pool, ticket, load, sharing } = parts;
        let (stake, sharing_qpn) = sharing.unzip();
        let agreed = protocol.agreed();
        let (max_payload, max_message) = (agreed.max_payload(), agreed.max_message);
        let (has_offers, eager_limit) = (agreed.offers, shared.options.longest_eager(agreed));
        let notifies = agreed.peer_takes_notifications;
        let max_operations = shared.options.max_operations();
        let Pool { domain, .. } = &pool;
        let pd = domain.pd.clone();
        let offers = Offers::new(&pd, &domain.read_buffers, max_message.min(MAX_OFFER_LEN));
        let operations = Operations::new(pool.words, max_operations);
        let arrivals = Arrivals::new(shared.options.notifications);
        let memory = Memory { buffers: pool.buffers, offers, operations, arrivals, stake };
        let flow = Mutex::new(Flow::new(key.into(), protocol, memory, shared.options.linger));
        let (shared, senders) = (Arc::clone(shared), AtomicUsize::new(1));
        // Without a parent: the program's current span would live as long as the connection.
        let span = tracing::debug_span!(
            target: "rdma_net", parent: None, "connection",
            key, local = local_addr.map(field::display), peer = peer_addr.map(field::display)
        );
        Arc::new(Self {
            key,
            id,
            sharing_qpn,
            port,
            local_addr,
            peer_addr,
            max_payload,
            max_message,
            offers: has_offers,
            notifies,
            max_operations,
            eager_limit,
            senders,
            has_messages: AtomicBool::new(false),
            may_send: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            fetch_buffers: Arc::new(FetchBuffers::new(max_operations)),
            batches: EntryLists::default(),
            pd,
            made_in: MadeIn::default(),
            flow,
            shared,
            _ticket: ticket,
            _load: load,
            span,
        })
    }

    /// Works on the state under the lock, then wakes the tasks that the work concerns, and the
    /// driver if it has something to do. A task that panics when it is woken keeps neither others
    /// nor the driver from that.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Flow, Instant) -> R) -> R {
        let (result, wakeups, deadline, end) = {
            let mut flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
            let had_ended = flow.outcome().is_some();
            let result = work(&mut flow, Instant::now());
            let end = flow.outcome().filter(|_| !had_ended).map(|failure| (failure.clone(), flow.stats()));
            self.has_messages.store(flow.has_messages(), Ordering::Relaxed);
            self.may_send.store(flow.may_send, Ordering::Relaxed);
            (result, mem::take(&mut flow.wakeups), flow.take_sooner_deadline(), end)
        };
        let mut panics = Panics::default();
        if let Some(lists) = wakeups.wake(&mut panics) {
            self.flow.lock().unwrap_or_else(PoisonError::into_inner).wakeups.reuse(lists);
        }
        if let Some(deadline) = deadline {
            self.shared.note_deadline(deadline);
        }
        if let Some((failure, stats)) = end {
            self.shared.note_end(self.key);
            panics.catch(|| self.log_end(&failure, &stats));
        }
        panics.resume();
        result
    }

    /// Logs that the connection is established. The caller holds no lock.
    fn log_opened(&self) {
        let Self { max_message, max_payload, .. } = self;
        tracing::debug!(
            name: "connection_opened", target: "rdma_net", parent: &self.span,
            max_message, max_payload, "a connection is established"
        );
    }

    /// Logs why the connection has ended, and what it has done. The caller holds no lock.
    #[cold]
    fn log_end(&self, failure: &Failure, stats: &ConnectionStats) {
        let ConnectionStats { sent, sent_bytes, received, received_bytes, operations, send_waits, .. } = stats;
        if failure.kind() == FailureKind::Closed {
            tracing::debug!(
                name: "connection_closed", target: "rdma_net", parent: &self.span,
                code = failure.code(), sent, sent_bytes, received, received_bytes, operations, send_waits,
                "a connection has closed"
            );
        } else {
            tracing::debug!(
                name: "connection_failed", target: "rdma_net", parent: &self.span,
                %failure, sent, sent_bytes, received, received_bytes, operations, send_waits,
                "a connection has failed"
            );
        }
    }

    /// Keeps the lock while `work` runs.
    #[cfg(test)]
    pub(crate) fn locked<R>(&self, work: impl FnOnce() -> R) -> R {
        self.with(|_, _| work())
    }

    /// Works as [`with`](Self::with) does for a handle that is dropped or needs no answer; does
    /// nothing in a forked child.
    pub(super) fn tell(&self, work: impl FnOnce(&mut Flow, Instant)) {
        if !self.made_in.is_forked() {
            self.with(work);
        }
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<()> {
        self.made_in.check(Verb::PostSend)
    }

    /// Polls under the lock, as [`with`](Self::with) works, and as [`Task::poll`] does; fails in a
    /// forked child.
    pub(super) fn poll<R>(
        &self,
        cx: &Context<'_>,
        is_likely_to_wait: bool,
        mut work: impl FnMut(&mut Flow, Instant, &mut Task<'_>) -> Poll<Result<R, Failure>>,
    ) -> Poll<Result<R, Failure>> {
        self.check_process()?;
        Task::poll(cx.waker(), is_likely_to_wait, |task| self.with(|flow, now| work(flow, now, task)))
    }

    /// Brings the connection up with the link that `connect` makes. Received messages wait
    /// meanwhile.
    pub(crate) fn connect(&self, connect: impl FnOnce() -> Result<Link, Failed<Remains>>) -> Result<()> {
        let connected = self.with(|flow, now| connect().map(|link| flow.set_link(link, now)));
        connected.map_err(|Failed { error, object, .. }| {
            // Outside of the lock, since a subscriber of the log may run; and before the end, which
            // gives shared receives back.
            let mut panics = Panics::default();
            panics.catch(|| drop(object));
            self.fail(error.into());
            panics.resume();
            error
        })
    }

    /// Fails the connection if it was not established, unless the peer has closed it already: its
    /// messages wait for the application.
    pub(crate) fn check(&self, established: Result<(), Failure>) -> Result<(), Failure> {
        let Err(failure) = established else {
            self.log_opened();
            return Ok(());
        };
        self.fail(failure.clone());
        let is_closed = self.failure().is_some_and(|failure| failure.kind() == FailureKind::Closed);
        if is_closed { Ok(()) } else { Err(failure) }
    }

    /// The number of the queue pair of an established connection.
    pub(crate) fn qpn(&self) -> Option<u32> {
        self.with(|flow, _| flow.qpn())
    }

    /// The queue pair of an established connection.
    #[cfg(test)]
    pub(crate) fn raw_queue_pair(&self) -> Option<*mut rdma_sys::ibv_qp> {
        self.with(|flow, _| flow.raw_queue_pair())
    }

    /// The attributes of the queue pair of an established connection.
    #[cfg(test)]
    pub(crate) fn attributes(&self) -> Option<rdma_sys::ibv_qp_attr> {
        self.with(|flow, _| flow.attributes())
    }

    /// Fails the connection if the peer does not send its first message in a time, or a later one.
    pub(crate) fn limit_silence(&self, first: Option<Duration>, idle: Option<Duration>) {
        self.with(|flow, now| flow.limit_silence(first, idle, now));
    }

    pub(crate) fn received(&self, buffer: Buffer, len: usize) {
        self.with(|flow, now| flow.received(buffer, len, now));
    }

    /// Takes a notification of the peer, and the receive that it has used.
    pub(crate) fn notified(&self, buffer: Buffer, number: u32) {
        self.with(|flow, now| flow.notified(buffer, number, now));
    }

    pub(crate) fn sent(&self, buffer: Buffer) {
        self.with(|flow, now| flow.sent(buffer, now));
    }

    pub(crate) fn operated(&self, id: u32, buffer: Buffer, old_value: Option<u64>) {
        self.with(|flow, now| flow.operated(id, buffer, old_value, now));
    }

    /// What the connection has done; nothing in a forked child. Runs no code of tasks, so the
    /// caller may hold a lock.
    pub(crate) fn stats(&self) -> ConnectionStats {
        if self.made_in.is_forked() {
            return ConnectionStats::default();
        }
        self.flow.lock().unwrap_or_else(PoisonError::into_inner).stats()
    }

    /// Whether the connection has ended although neither side has closed it. Runs no code of tasks,
    /// so the caller may hold a lock.
    pub(crate) fn has_failed(&self) -> bool {
        let flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        flow.outcome().is_some_and(|failure| failure.kind() != FailureKind::Closed)
    }

    /// The reason of the end, once the connection has ended.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.with(|flow, _| flow.outcome().cloned())
    }

    pub(crate) fn fail(&self, failure: Failure) {
        // Outside of the lock: it may ask the device.
        let failure = self.shared.judge(failure, self.port);
        self.with(|flow, _| flow.fail(failure));
    }

    pub(crate) fn handle_timeout(&self) {
        let (result, is_cut_off) = self.with(|flow, now| (flow.handle_timeout(now), flow.is_cut_off()));
        self.is_cut_off.store(is_cut_off, Ordering::Relaxed);
        if result.is_err() {
            self.fail(Failure::new(FailureKind::PeerGone));
        }
    }

    /// Ends the data of the peer for the application, and cuts the connection off at a time.
    pub(crate) fn shut_down(&self, by: Instant) {
        self.with(|flow, now| flow.shut_down(by, now));
    }

    /// Whether the connection was closed without waiting for the peer.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }

    /// Takes a receive of the pool that was flushed.
    pub(crate) fn flushed(&self, buffer: Buffer) {
        self.with(|flow, _| flow.flushed(buffer));
    }

    /// Disconnects a connection that has ended. Returns its queue pair if receives of a pool may
    /// still complete on it.
    pub(crate) fn disconnect(&self) -> Option<Draining> {
        // Outside of the lock: a subscriber of the log may run.
        let (link, stake) = self.with(|flow, _| flow.take_link())?;
        link.disconnect(self.key, stake)
    }

    /// Time for a close that the application waits for.
    pub(super) fn close_time(&self) -> Duration {
        self.shared.options.timeout.max(self.shared.options.linger)
    }

    /// Waits until the connection has closed; returns the peer's code.
    pub(super) fn poll_closed(&self, place: &mut Option<Place>, cx: &Context<'_>) -> Poll<Result<u32, Failure>> {
        self.poll(cx, true, |flow, _, task| {
            let Some(failure) = flow.outcome().cloned() else {
                flow.wait_for_end(place, task);
                return Poll::Pending;
            };
            // All tasks have left with the end.
            *place = None;
            match (failure.kind(), failure.code()) {
                (FailureKind::Closed, Some(code)) => Poll::Ready(Ok(code)),
                _ => Poll::Ready(Err(failure)),
            }
        })
    }

    /// Notes that a sender was dropped. The last one ends the data.
    pub(super) fn drop_sender(&self) {
        if self.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(Flow::finish);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.made_in.is_forked() {
            // In a forked child a lock of the subscriber may be held for ever.
            let _open = ManuallyDrop::new(mem::replace(&mut self.span, Span::none()));
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("key", &self.key).field("peer_addr", &self.peer_addr).finish_non_exhaustive()
    }
}

/// The memory of a connection, registered as one region.
pub(crate) struct Pool {
    domain: Domain,
    buffers: Buffers,
    /// Words for atomic operations.
    words: Vec<Buffer>,
    /// Buffers for the first receives.
    receives: Vec<Buffer>,
}

impl Pool {
    /// Allocates the first receives and as many spares as the window, unless the connection shares
    /// receives, the send buffers, and words for atomic operations.
    pub(crate) fn new(domain: Domain, options: &NodeOptions, shares: bool) -> Result<Self> {
        let size = options.buffer_size();
        let [receives, spares] = if shares { [0, 0] } else { [options.receives(), options.window.into()] };
        let counts = [receives, spares, options.slots(shares)].map(|count| count as usize);
        let words = options.max_operations() as usize;
        let mut region = domain.pd.allocate(size * counts.iter().sum::<usize>() + WORD * words)?;
        let mut cut = |size, count| (0..count).map(|_| region.split_to(size)).collect::<Vec<_>>();
        let [receives, spares, sends] = counts.map(|count| cut(size, count));
        Ok(Self { buffers: Buffers { spares, sends }, words: cut(WORD, words), receives, domain })
    }

    /// The domain of the memory, and of the queue pair.
    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.domain.pd
    }

    /// Takes the buffers of the first receives.
    pub(crate) fn take_receives(&mut self) -> Vec<Buffer> {
        mem::take(&mut self.receives)
    }
}
