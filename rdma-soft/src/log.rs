//! The log of the device: `tracing` events, which the agent thread emits.
//!
//! A subscriber may call verbs, or panic. So no event is emitted under a lock, and none in a thread
//! that calls a verb: that thread may hold locks of its own and must not be unwound. Events are
//! queued, and the agent thread emits them between two of its turns. An event goes to the
//! subscriber of the thread that logged the event. In a program without one, standard error is the
//! subscriber if `RDMA_SOFT_LOG` asks for it.

pub(crate) mod stderr;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tracing::dispatcher::{self, Dispatch};
use tracing::subscriber::NoSubscriber;

use self::stderr::Printer;
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;

/// Limit of queued events; further events are dropped, so that a peer cannot exhaust the memory.
const MAX_WAITING: usize = 1 << 10;

/// The queued events of this process; a forked child does not emit its parent's events.
static QUEUE: PerProcess<Queue> = PerProcess::new();

/// The subscriber in place of a missing one, if the environment asks for it. Children use their
/// parent's: `tracing` takes a lock to register one, which a fork may leave locked.
static STDERR: OnceLock<Dispatch> = OnceLock::new();
/// Whether a thread of this process or of an ancestor has begun to set [`STDERR`].
static IS_READ: AtomicBool = AtomicBool::new(false);

/// Wakes the thread that calls [`emit_deferred`]. Each process sets its own: a child that is forked
/// while its parent sets a `OnceLock` would wait for the parent's thread for ever.
static WAKE: PerProcess<fn()> = PerProcess::new();

#[derive(Default)]
struct Queue {
    waiting: Lock<Vec<Deferred>>,
    /// Number of events not emitted yet, including those that a running [`emit_deferred`] holds.
    pending: AtomicUsize,
}

/// A queued event.
struct Deferred {
    emit: Box<dyn FnOnce() + Send>,
    to: Dispatch,
}

/// Logs an event: a level, then the arguments of `tracing::event!`. Values are moved into the
/// event.
macro_rules! log {
    ($level:ident, $($event:tt)+) => {
        // `current` reads one atomic word and calls no subscriber.
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::log::defer(move || tracing::event!(tracing::Level::$level, $($event)+));
        }
    };
}
pub(crate) use log;

/// Reads which events go to standard error, once. A child that is forked meanwhile prints nothing.
pub(crate) fn read_environment() {
    if IS_READ.swap(true, Ordering::Relaxed) || !dispatcher::get_default(Dispatch::is::<NoSubscriber>) {
        return;
    }
    if let Some(printer) = Printer::from_environment() {
        // No other thread sets it.
        let _set = STDERR.set(Dispatch::new(printer));
    }
}

/// The subscriber of this thread's events.
fn subscriber() -> Dispatch {
    let own = dispatcher::get_default(Dispatch::clone);
    match STDERR.get() {
        Some(stderr) if own.is::<NoSubscriber>() => stderr.clone(),
        _ => own,
    }
}

/// Sets the function that wakes the agent thread.
pub(crate) fn set_wake(wake: fn()) {
    let _set = WAKE.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::new(wake))));
}

/// Queues an event for the agent to emit. May be called under any lock; see [`log!`].
pub(crate) fn defer(emit: impl FnOnce() + Send + 'static) {
    let deferred = Deferred { emit: Box::new(emit), to: subscriber() };
    {
        let queue = QUEUE.get_or_default();
        let mut waiting = queue.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            return;
        }
        waiting.push(deferred);
        queue.pending.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(wake) = WAKE.get() {
        wake();
    }
}

/// Emits the queued events. The caller must hold no lock; a subscriber's panic is caught here.
pub(crate) fn emit_deferred() {
    if is_idle() {
        return;
    }
    let queue = QUEUE.get_or_default();
    let deferred = std::mem::take(&mut *queue.waiting.lock());
    for Deferred { emit, to } in deferred {
        let emitted = catch_unwind(AssertUnwindSafe(move || {
            dispatcher::with_default(&to, emit);
            drop(to);
        }));
        // The panic hook has reported the panic. The payload is the subscriber's own type and could
        // panic in its destructor, so it is leaked.
        emitted.unwrap_or_else(std::mem::forget);
        queue.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether every event has been emitted.
pub(crate) fn is_idle() -> bool {
    QUEUE.get_or_default().pending.load(Ordering::Relaxed) == 0
}
