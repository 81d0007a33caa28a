//! Delivery of the engine's events to the queues on which C waits, and the counts of events that C
//! has read and acknowledged.
//!
//! The engine names an object by the token with which the object was created. [`deliver`] finds the
//! object's entry by the token and queues the event on the object's completion channel, or on the
//! asynchronous event queue of its context. Invariants:
//!
//! 1. The address in an entry is that of a live object while one of the entry's ledgers is open or
//!    has reported events that are not acknowledged: destroying the object closes the ledgers,
//!    removes unread events from the queues and waits for the acknowledgement of the others.
//! 2. [`deliver`] takes only the locks of this module's lists and of event queues, so it may be
//!    called under the node's lock.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, PoisonError, Weak};
use std::task::Waker;

use rdma_sys::{ibv_cq, ibv_event_type};

use super::event_queue::EventQueue;
use crate::engine::{Element, Event};
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;

/// The queue of a completion channel: one entry per event.
pub(crate) type CompletionEvents = EventQueue<Arc<Entry>>;

/// The queue behind a context's descriptor.
pub(crate) type AsyncEvents = EventQueue<AsyncEvent>;

/// A queued asynchronous event.
#[derive(Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) event_type: ibv_event_type,
    /// The CQ, QP or SRQ of the event, as `event_type` says; `None` for an event of the port or the
    /// device.
    pub(crate) object: Option<Arc<Entry>>,
}

impl AsyncEvent {
    fn is_of(&self, entry: &Entry) -> bool {
        self.object.as_ref().is_some_and(|object| ptr::eq(Arc::as_ptr(object), entry))
    }
}

/// Counts of the events of one kind that C has read from an object, and of those it has
/// acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    closed: AtomicBool,
    counts: Lock<Counts>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Both counts are modulo 2^32, like the public counters.
    reported: u32,
    completed: u32,
    /// Threads in [`Ledger::settle`]. Without any, an acknowledgement makes no system call.
    waiting: u32,
}

impl Ledger {
    /// Counts an event that C has read. Called under the event queue's lock.
    pub(crate) fn report(&self) {
        let mut counts = self.counts.lock();
        counts.reported = counts.reported.wrapping_add(1);
    }

    /// Counts acknowledgements. `publish` writes the new count to C's counter, under the ledger's
    /// lock.
    pub(crate) fn acknowledge(&self, events: u32, publish: impl FnOnce(u32)) {
        let mut counts = self.counts.lock();
        counts.completed = counts.completed.wrapping_add(events);
        publish(counts.completed);
        if counts.waiting > 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until every event that C has read is acknowledged.
    pub(crate) fn settle(&self) {
        self.wait_while(|counts| counts.completed != counts.reported);
    }

    /// The number of events that C has read, modulo 2^32.
    pub(crate) fn reported(&self) -> u32 {
        self.counts.lock().reported
    }

    /// Waits until C has acknowledged as many events as [`Ledger::reported`] returned.
    pub(crate) fn settle_until(&self, reported: u32) {
        // A difference in the upper half of the numbers is a negative one.
        self.wait_while(|counts| counts.completed.wrapping_sub(reported) > u32::MAX / 2);
    }

    fn wait_while(&self, condition: impl FnMut(&mut Counts) -> bool) {
        let mut counts = self.counts.lock();
        counts.waiting += 1;
        let settled = self.acknowledged.wait_while(counts, condition);
        settled.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    /// Stops further events from being queued. Call under the event queue's lock, as
    /// [`Ledger::is_open`].
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// The part of a CQ, QP or SRQ that the delivery of its events needs.
#[derive(Debug)]
pub(crate) struct Entry {
    token: u64,
    address: AtomicPtr<c_void>,
    /// The completion channel of a CQ; `None` for a QP or SRQ, or a CQ without a channel.
    channel: Option<Arc<CompletionEvents>>,
    context: Arc<AsyncEvents>,
    /// Events on the completion channel.
    pub(crate) completions: Ledger,
    pub(crate) async_events: Ledger,
}

static ENTRIES: PerProcess<Lock<HashMap<u64, Arc<Entry>>>> = PerProcess::new();
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

impl Entry {
    /// Makes the entry of an object that does not exist yet. No event is delivered before
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

    /// The object's address, cast to the type under which C knows the object.
    pub(crate) fn address<T>(&self) -> *mut T {
        self.address.load(Ordering::Relaxed).cast()
    }

    /// Stores the object's address and lets [`deliver`] find the entry.
    pub(crate) fn announce<T>(self: &Arc<Self>, address: *mut T) {
        self.address.store(address.cast(), Ordering::Relaxed);
        ENTRIES.get_or_default().lock().insert(self.token, Arc::clone(self));
    }

    /// Removes unread events from the queues and admits no new ones. The engine's object must have
    /// ended before.
    pub(crate) fn close(&self) {
        ENTRIES.get_or_default().lock().remove(&self.token);
        let is_self = |entry: &Arc<Self>| ptr::eq(Arc::as_ptr(entry), self);
        if let Some(channel) = &self.channel {
            channel.retract(is_self, || self.completions.close());
        }
        self.context.retract(|event| event.is_of(self), || self.async_events.close());
    }

    /// Waits until C has acknowledged every event that it read; call [`Entry::close`] before.
    pub(crate) fn settle(&self) {
        self.completions.settle();
        self.async_events.settle();
    }
}

/// Queues an event of the engine on the channel or context of its object, or on all contexts. Drops
/// events of destroyed objects. Returns the waker of a completion channel's threads, if some may
/// sleep on its descriptor.
pub(crate) fn deliver(event: Event) -> Option<Waker> {
    match event {
        Event::Completion { token, .. } => {
            let entry = entry(token)?;
            // C may arm a CQ without a channel too; the event of such a CQ is dropped.
            let channel = entry.channel.as_ref()?;
            let is_queued = channel.enqueue(Arc::clone(&entry), |entry| entry.completions.is_open());
            is_queued.then(|| Waker::from(Arc::clone(channel)))
        }
        Event::Async { event_type, element } => {
            let (Element::Cq(_, token) | Element::Qp(_, token) | Element::Srq(_, token)) = element else {
                deliver_to_all(event_type);
                return None;
            };
            let entry = entry(token)?;
            let context = Arc::clone(&entry.context);
            context
                .offer(AsyncEvent { event_type, object: Some(Arc::clone(&entry)) }, |_| entry.async_events.is_open());
            None
        }
    }
}

fn entry(token: u64) -> Option<Arc<Entry>> {
    ENTRIES.get_or_default().lock().get(&token).cloned()
}

/// The event queues of this process's contexts.
static CONTEXTS: PerProcess<Lock<Vec<Weak<AsyncEvents>>>> = PerProcess::new();

/// Lets a context have the events of the port and the device.
pub(crate) fn listen(context: &Arc<AsyncEvents>) {
    let mut contexts = CONTEXTS.get_or_default().lock();
    contexts.retain(|context| context.strong_count() > 0);
    contexts.push(Arc::downgrade(context));
}

/// Queues an event of the port or the device on every context.
fn deliver_to_all(event_type: ibv_event_type) {
    for context in CONTEXTS.get_or_default().lock().iter().filter_map(Weak::upgrade) {
        context.offer(AsyncEvent { event_type, object: None }, |_| true);
    }
}

/// Reads `cq_context`, the user's pointer, from a completion queue.
///
/// # Safety
///
/// `cq` is a live object of this device.
pub(crate) unsafe fn cq_context(cq: *mut ibv_cq) -> *mut c_void {
    // SAFETY: a read requires a valid pointer and no concurrent write: the object is alive (the
    // caller's contract), and no other thread writes to a public field during the call (`verbs`,
    // promise 4).
    unsafe { (*cq).cq_context }
}
