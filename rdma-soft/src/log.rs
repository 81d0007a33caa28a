//! What the device has to say about itself.
//!
//! A subscriber may do anything: call verbs, or panic. So no event is emitted under a lock, nor by
//! the caller of a verb, who may hold locks of its own and whom nothing may unwind into: a remark
//! waits until the agent thread says it, between two of its turns. It goes to who was subscribed
//! when it was made.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::dispatcher::{self, Dispatch};

use crate::node;
use crate::os::fork::PerProcess;

/// So many wait; a peer that gives cause for more is not worth the memory.
const MAX_WAITING: usize = 1 << 10;

/// What this process has to say; a forked child does not say what its parent has to.
static QUEUE: PerProcess<Queue> = PerProcess::new();

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Remark>>,
    /// How many are not said yet.
    unsaid: AtomicUsize,
}

struct Remark {
    emit: Box<dyn FnOnce() + Send>,
    to: Dispatch,
}

/// Remarks something: a level, then what `tracing::event!` takes. Values are moved into it.
macro_rules! remark {
    ($level:ident, $($event:tt)+) => {
        // Read from one word: this asks no subscriber.
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::log::later(move || tracing::event!(tracing::Level::$level, $($event)+));
        }
    };
}
pub(crate) use remark;

fn queue() -> &'static Queue {
    let Ok(queue) = QUEUE.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::default())));
    queue
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Remark>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the agent emit an event. Under any lock; see [`remark!`].
pub(crate) fn later(emit: impl FnOnce() + Send + 'static) {
    let remark = Remark { emit: Box::new(emit), to: dispatcher::get_default(Dispatch::clone) };
    {
        let queue = queue();
        let mut waiting = queue.waiting();
        if waiting.len() >= MAX_WAITING {
            return;
        }
        waiting.push(remark);
        queue.unsaid.fetch_add(1, Ordering::Relaxed);
    }
    node::wake_agent();
}

/// Says what waits. For who holds no lock; nothing unwinds out of it.
pub(crate) fn say() {
    if is_all_said() {
        return;
    }
    let remarks = std::mem::take(&mut *queue().waiting());
    for Remark { emit, to } in remarks {
        let said = catch_unwind(AssertUnwindSafe(move || {
            dispatcher::with_default(&to, emit);
            drop(to);
        }));
        // The hook has reported the panic. What was thrown is not ours, and could panic when it is
        // dropped.
        said.unwrap_or_else(std::mem::forget);
        queue().unsaid.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether there is nothing left to say.
pub(crate) fn is_all_said() -> bool {
    queue().unsaid.load(Ordering::Relaxed) == 0
}
