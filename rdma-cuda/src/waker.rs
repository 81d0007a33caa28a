//! The thread that wakes tasks which wait for events.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::event::Event;
use crate::panics;

/// How often the thread looks at events: often at first, because most work is short.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// The queue to the thread; `None` if the thread cannot be started.
static THREAD: LazyLock<Option<Sender<Watched>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    let builder = std::thread::Builder::new().name("rdma-cuda-waker".into());
    builder.spawn(move || run(&receiver)).ok().map(|_detached| sender)
});

/// Wakes a task when an event is done or has failed, unless it is dropped before.
#[derive(Debug)]
pub(crate) struct Watch {
    waker: Arc<Mutex<Option<Waker>>>,
    has_thread: bool,
}

/// An event that the thread looks at.
struct Watched {
    event: Event,
    waker: Weak<Mutex<Option<Waker>>>,
}

impl Watch {
    pub(crate) fn new(event: Event) -> Self {
        let waker = Arc::default();
        let watched = Watched { event, waker: Arc::downgrade(&waker) };
        let has_thread = THREAD.as_ref().is_some_and(|thread| thread.send(watched).is_ok());
        Self { waker, has_thread }
    }

    /// Sets the task to wake.
    pub(crate) fn set(&self, waker: &Waker) {
        if !self.has_thread {
            // The task polls again and again.
            return waker.wake_by_ref();
        }
        let new = waker.clone();
        let old = self.waker.lock().unwrap_or_else(PoisonError::into_inner).replace(new);
        // Dropped here and not under the lock.
        drop(old);
    }
}

fn run(queue: &Receiver<Watched>) {
    let (mut watched, mut pause) = (Vec::<Watched>::new(), SHORTEST);
    loop {
        if watched.is_empty() {
            // The queue is a static: it never closes.
            let Ok(first) = queue.recv() else { return };
            watched.push(first);
            pause = SHORTEST;
        }
        watched.retain(|entry| !is_over(entry));
        match queue.recv_timeout(pause) {
            Ok(new) => {
                watched.push(new);
                pause = SHORTEST;
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Whether an event needs no watching any more. Wakes its task if it is done or has failed.
fn is_over(entry: &Watched) -> bool {
    let Some(waker) = entry.waker.upgrade() else { return true };
    if matches!(entry.event.is_done(), Ok(false)) {
        return false;
    }
    let Some(waker) = waker.lock().unwrap_or_else(PoisonError::into_inner).take() else { return false };
    // Outside the lock, because this is code of the task's executor, and may panic.
    panics::contain(|| waker.wake());
    true
}
