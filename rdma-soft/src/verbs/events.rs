//! From the engine's events to what C waits for, and the count of events that C still has to
//! acknowledge.
//!
//! The engine names an object by the token it was created with; [`deliver`] finds the object's
//! entry here and queues the event where the object's owner waits: a completion channel, or the
//! context's asynchronous events. Invariants:
//!
//! 1. An address in an entry is that of a live object as long as the entry's ledger is open or has
//!    events that were reported and not acknowledged: destroying the object closes the ledger,
//!    takes unread events back and waits for the others.
//! 2. [`deliver`] takes only this module's map and an event queue's lock, so it may be called under
//!    the node's lock.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_cq, ibv_event_type, ibv_qp};

use super::event_queue::EventQueue;
use crate::engine::{Element, Event};
use crate::os::fork::PerProcess;

/// What a completion channel holds: one entry per event.
pub(crate) type CompletionEvents = EventQueue<Arc<CqEntry>>;

/// What a context's descriptor tells of.
pub(crate) type AsyncEvents = EventQueue<AsyncEvent>;

/// An asynchronous event that waits to be read.
#[derive(Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) event_type: ibv_event_type,
    pub(crate) element: AsyncElement,
}

/// The object that an asynchronous event is about.
#[derive(Clone, Debug)]
pub(crate) enum AsyncElement {
    Cq(Arc<CqEntry>),
    Qp(Arc<QpEntry>),
}

impl AsyncElement {
    fn ledger(&self) -> &Ledger {
        match self {
            Self::Cq(cq) => &cq.async_events,
            Self::Qp(qp) => &qp.async_events,
        }
    }

    /// Counts the event as read by C.
    pub(crate) fn report(&self) {
        self.ledger().report();
    }
}

/// How many events of one kind C has read from an object, and how many of them it has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    closed: AtomicBool,
    counts: Mutex<Counts>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Modulo 2^32, as the public counters are.
    reported: u32,
    completed: u32,
}

impl Ledger {
    /// Counts an event that C has read. Called under the event queue's lock.
    pub(crate) fn report(&self) {
        let mut counts = self.lock();
        counts.reported = counts.reported.wrapping_add(1);
    }

    /// Counts acknowledgements; `publish` shows C the new count under the ledger's lock.
    pub(crate) fn acknowledge(&self, events: u32, publish: impl FnOnce(u32)) {
        let mut counts = self.lock();
        counts.completed = counts.completed.wrapping_add(events);
        publish(counts.completed);
        self.acknowledged.notify_all();
    }

    /// Waits until every event that was read is acknowledged.
    pub(crate) fn settle(&self) {
        let counts = self.lock();
        let settled = self.acknowledged.wait_while(counts, |counts| counts.completed != counts.reported);
        drop(settled.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    /// From now on nothing is queued. Called under the event queue's lock, as [`Ledger::is_open`]
    /// is.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What events need to know of a completion queue.
#[derive(Debug)]
pub(crate) struct CqEntry {
    token: u64,
    address: AtomicPtr<ibv_cq>,
    channel: Option<Arc<CompletionEvents>>,
    context: Arc<AsyncEvents>,
    pub(crate) completions: Ledger,
    pub(crate) async_events: Ledger,
}

/// What events need to know of a queue pair.
#[derive(Debug)]
pub(crate) struct QpEntry {
    token: u64,
    address: AtomicPtr<ibv_qp>,
    context: Arc<AsyncEvents>,
    pub(crate) async_events: Ledger,
}

#[derive(Clone, Debug)]
enum Entry {
    Cq(Arc<CqEntry>),
    Qp(Arc<QpEntry>),
}

static ENTRIES: PerProcess<Mutex<HashMap<u64, Entry>>> = PerProcess::new();
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

fn entries() -> MutexGuard<'static, HashMap<u64, Entry>> {
    let Ok(entries) = ENTRIES.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::default())));
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_token() -> u64 {
    NEXT_TOKEN.fetch_add(1, Ordering::Relaxed)
}

impl CqEntry {
    /// An entry for a completion queue that is about to be made; it gets no event before
    /// [`CqEntry::announce`].
    pub(crate) fn new(channel: Option<Arc<CompletionEvents>>, context: Arc<AsyncEvents>) -> Arc<Self> {
        Arc::new(Self {
            token: new_token(),
            address: AtomicPtr::new(ptr::null_mut()),
            channel,
            context,
            completions: Ledger::default(),
            async_events: Ledger::default(),
        })
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn address(&self) -> *mut ibv_cq {
        self.address.load(Ordering::Relaxed)
    }

    /// Opens the entry for events, under the object's address.
    pub(crate) fn announce(self: &Arc<Self>, address: *mut ibv_cq) {
        self.address.store(address, Ordering::Relaxed);
        entries().insert(self.token, Entry::Cq(Arc::clone(self)));
    }

    /// Takes unread events back and lets no new ones in. The engine's queue is gone already.
    pub(crate) fn close(&self) {
        entries().remove(&self.token);
        if let Some(channel) = &self.channel {
            channel.retract(|cq| ptr::eq(Arc::as_ptr(cq), self), || self.completions.close());
        }
        let ours =
            |event: &AsyncEvent| matches!(&event.element, AsyncElement::Cq(cq) if ptr::eq(Arc::as_ptr(cq), self));
        self.context.retract(ours, || self.async_events.close());
    }

    /// Waits for the acknowledgements that C owes; call [`CqEntry::close`] before.
    pub(crate) fn settle(&self) {
        self.completions.settle();
        self.async_events.settle();
    }
}

impl QpEntry {
    /// An entry for a queue pair that is about to be made; it gets no event before
    /// [`QpEntry::announce`].
    pub(crate) fn new(context: Arc<AsyncEvents>) -> Arc<Self> {
        Arc::new(Self {
            token: new_token(),
            address: AtomicPtr::new(ptr::null_mut()),
            context,
            async_events: Ledger::default(),
        })
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn address(&self) -> *mut ibv_qp {
        self.address.load(Ordering::Relaxed)
    }

    /// Opens the entry for events, under the object's address.
    pub(crate) fn announce(self: &Arc<Self>, address: *mut ibv_qp) {
        self.address.store(address, Ordering::Relaxed);
        entries().insert(self.token, Entry::Qp(Arc::clone(self)));
    }

    /// Takes unread events back and lets no new ones in.
    pub(crate) fn close(&self) {
        entries().remove(&self.token);
        let ours =
            |event: &AsyncEvent| matches!(&event.element, AsyncElement::Qp(qp) if ptr::eq(Arc::as_ptr(qp), self));
        self.context.retract(ours, || self.async_events.close());
    }

    /// Waits for the acknowledgements that C owes; call [`QpEntry::close`] before.
    pub(crate) fn settle(&self) {
        self.async_events.settle();
    }
}

/// Queues an event of the engine where its owner waits for it. Events of objects that are gone are
/// dropped.
pub(crate) fn deliver(event: Event) {
    match event {
        Event::Completion { token, .. } => {
            let entry = entries().get(&token).cloned();
            let Some(Entry::Cq(cq)) = entry else { return };
            // A completion queue without a channel may be armed; nobody hears of it.
            if let Some(channel) = &cq.channel {
                channel.offer(Arc::clone(&cq), |cq| cq.completions.is_open());
            }
        }
        Event::Async { event_type, element } => {
            let (Element::Cq(_, token) | Element::Qp(_, token)) = element;
            let entry = entries().get(&token).cloned();
            let (element, context) = match entry {
                Some(Entry::Cq(cq)) => (AsyncElement::Cq(Arc::clone(&cq)), Arc::clone(&cq.context)),
                Some(Entry::Qp(qp)) => (AsyncElement::Qp(Arc::clone(&qp)), Arc::clone(&qp.context)),
                None => return,
            };
            context.offer(AsyncEvent { event_type, element }, |event| event.element.ledger().is_open());
        }
    }
}

/// Reads the user's pointer out of a live completion queue.
///
/// # Safety
///
/// `cq` is a live object of this device.
pub(crate) unsafe fn cq_context(cq: *mut ibv_cq) -> *mut c_void {
    // SAFETY: the caller's promise; C writes the field only before it shares the object.
    unsafe { (*cq).cq_context }
}
