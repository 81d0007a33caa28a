//! The log of the device: `tracing` events, which the agent thread emits.
//!
//! A subscriber may do anything: call verbs, or panic. So no event is emitted under a lock, nor by
//! the caller of a verb, which may hold locks of its own and must not be unwound: events wait until
//! the agent thread emits them between two of its turns. An event goes to the subscriber of the
//! thread that logged it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::dispatcher::{self, Dispatch};

use crate::os::fork::PerProcess;

/// Events that may wait. A peer that causes more is not worth the memory.
const MAX_WAITING: usize = 1 << 10;

/// The events of this process; a forked child does not emit those of its parent.
static QUEUE: PerProcess<Queue> = PerProcess::new();

/// Wakes the thread that calls [`emit_deferred`].
static WAKE: OnceLock<fn()> = OnceLock::new();

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Deferred>>,
    /// The number of events that are not emitted yet, those of a running [`emit_deferred`]
    /// included.
    pending: AtomicUsize,
}

/// An event that waits to be emitted.
struct Deferred {
    emit: Box<dyn FnOnce() + Send>,
    to: Dispatch,
}

/// Logs an event: a level, then the arguments of `tracing::event!`. Values are moved into it.
macro_rules! log {
    ($level:ident, $($event:tt)+) => {
        // Read from one word: this asks no subscriber.
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::log::defer(move || tracing::event!(tracing::Level::$level, $($event)+));
        }
    };
}
pub(crate) use log;

fn queue() -> &'static Queue {
    let Ok(queue) = QUEUE.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::default())));
    queue
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Deferred>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the function that wakes the agent thread.
pub(crate) fn set_wake(wake: fn()) {
    // The function is the same for every node of the process and its children.
    let _set = WAKE.set(wake);
}

/// Has the agent emit an event. May be called under any lock; see [`log!`].
pub(crate) fn defer(emit: impl FnOnce() + Send + 'static) {
    let deferred = Deferred { emit: Box::new(emit), to: dispatcher::get_default(Dispatch::clone) };
    {
        let queue = queue();
        let mut waiting = queue.waiting();
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

/// Emits the events that wait. The caller holds no lock; a subscriber's panic ends here.
pub(crate) fn emit_deferred() {
    if is_idle() {
        return;
    }
    let deferred = std::mem::take(&mut *queue().waiting());
    for Deferred { emit, to } in deferred {
        let emitted = catch_unwind(AssertUnwindSafe(move || {
            dispatcher::with_default(&to, emit);
            drop(to);
        }));
        // The panic hook has reported it. The payload is the subscriber's, and could panic when it
        // is dropped.
        emitted.unwrap_or_else(std::mem::forget);
        queue().pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether every event is emitted.
pub(crate) fn is_idle() -> bool {
    queue().pending.load(Ordering::Relaxed) == 0
}
