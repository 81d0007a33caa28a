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
        // A waker or a log subscriber may panic when it is dropped here. The entry then stays.
        panics::contain(|| watched.retain(|entry| !is_over(entry)));
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;
    use std::task::Wake;

    use super::*;
    use crate::{Stream, testing};

    /// Panics when it is dropped.
    struct Bomb;

    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("expected by the test");
        }
    }

    /// Leaves a bomb as the waker of a watch, and drops the watch.
    struct Replaces(Mutex<Option<Watch>>);

    impl Wake for Replaces {
        fn wake(self: Arc<Self>) {
            if let Some(watch) = self.0.lock().unwrap().take() {
                watch.set(&Waker::from(Arc::new(Bomb)));
            }
        }
    }

    struct Tells(SyncSender<()>);

    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            let _heard = self.0.send(());
        }
    }

    #[test]
    fn a_waker_that_panics_when_it_is_dropped_keeps_nobody_asleep() {
        let stream = Stream::new(&testing::driver().gpu(0).unwrap()).unwrap();
        let replaces = Arc::new(Replaces(Mutex::new(None)));
        let watch = Watch::new(stream.record().unwrap());
        let waker = Waker::from(Arc::clone(&replaces));
        // Locked, so that the thread finds the watch in its place.
        let mut place = replaces.0.lock().unwrap();
        watch.set(&waker);
        *place = Some(watch);
        drop(place);
        rdma_test_support::until("the waker is called", || replaces.0.lock().unwrap().is_none());
        let (sender, woken) = std::sync::mpsc::sync_channel(1);
        let watch = Watch::new(stream.record().unwrap());
        assert!(watch.has_thread);
        watch.set(&Waker::from(Arc::new(Tells(sender))));
        woken.recv_timeout(rdma_test_support::LIMIT).expect("the thread goes on");
    }
}
