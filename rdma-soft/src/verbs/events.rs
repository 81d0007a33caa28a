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

use rdma_sys::{ibv_cq, ibv_event_type};

use super::event_queue::EventQueue;
use crate::engine::{Element, Event};
use crate::os::fork::PerProcess;

/// The queue of a completion channel: one entry per event.
pub(crate) type CompletionEvents = EventQueue<Arc<Entry>>;

/// The queue behind a context's descriptor.
pub(crate) type AsyncEvents = EventQueue<AsyncEvent>;

/// An asynchronous event that waits to be read.
#[derive(Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) event_type: ibv_event_type,
    /// The completion queue or queue pair that it is about, as the type says.
    pub(crate) object: Arc<Entry>,
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

/// The part of a completion queue or queue pair that its events need.
#[derive(Debug)]
pub(crate) struct Entry {
    token: u64,
    address: AtomicPtr<c_void>,
    /// Of a completion queue that has one.
    channel: Option<Arc<CompletionEvents>>,
    context: Arc<AsyncEvents>,
    /// Events of the channel.
    pub(crate) completions: Ledger,
    pub(crate) async_events: Ledger,
}

static ENTRIES: PerProcess<Mutex<HashMap<u64, Arc<Entry>>>> = PerProcess::new();
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

fn entries() -> MutexGuard<'static, HashMap<u64, Arc<Entry>>> {
    let Ok(entries) = ENTRIES.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::default())));
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    /// An entry for an object that is about to be made; it gets no event before
    /// [`Entry::announce`].
    pub(crate) fn new(channel: Option<Arc<CompletionEvents>>, context: Arc<AsyncEvents>) -> Arc<Self> {
        Arc::new(Self {
            token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed),
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

    /// The object's address, as a pointer to the type that C knows it by.
    pub(crate) fn address<T>(&self) -> *mut T {
        self.address.load(Ordering::Relaxed).cast()
    }

    /// Opens the entry for events, under the object's address.
    pub(crate) fn announce<T>(self: &Arc<Self>, address: *mut T) {
        self.address.store(address.cast(), Ordering::Relaxed);
        entries().insert(self.token, Arc::clone(self));
    }

    /// Takes unread events back and lets no new ones in. The engine's object is gone already.
    pub(crate) fn close(&self) {
        entries().remove(&self.token);
        let is_self = |entry: &Arc<Self>| ptr::eq(Arc::as_ptr(entry), self);
        if let Some(channel) = &self.channel {
            channel.retract(is_self, || self.completions.close());
        }
        self.context.retract(|event| is_self(&event.object), || self.async_events.close());
    }

    /// Waits for the acknowledgements that C owes; call [`Entry::close`] before.
    pub(crate) fn settle(&self) {
        self.completions.settle();
        self.async_events.settle();
    }
}

/// Queues an event of the engine where its owner waits for it. Events of objects that are gone are
/// dropped.
pub(crate) fn deliver(event: Event) {
    let (Event::Completion { token, .. } | Event::Async { element: Element::Cq(_, token) | Element::Qp(_, token), .. }) =
        event;
    let Some(entry) = entries().get(&token).cloned() else { return };
    if let Event::Async { event_type, .. } = event {
        let context = Arc::clone(&entry.context);
        context.offer(AsyncEvent { event_type, object: entry }, |event| event.object.async_events.is_open());
    } else if let Some(channel) = &entry.channel {
        // A completion queue without a channel may be armed too: its event goes nowhere.
        channel.offer(Arc::clone(&entry), |entry| entry.completions.is_open());
    }
}

/// Reads the user's pointer out of a live completion queue.
///
/// # Safety
///
/// `cq` is a live object of this device.
pub(crate) unsafe fn cq_context(cq: *mut ibv_cq) -> *mut c_void {
    // SAFETY: a field of a live object (the caller's contract); C writes it only before it shares
    // the object.
    unsafe { (*cq).cq_context }
}
