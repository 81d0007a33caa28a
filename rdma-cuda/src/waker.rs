//! The thread that wakes tasks which wait for events.
//!
//! The driver's host functions run no wakers, because a waker may call CUDA: this thread polls
//! events and wakes tasks.

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
        look_at_all(&mut watched);
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

/// Wakes the tasks whose events are done or have failed, and forgets what needs no watching.
fn look_at_all(watched: &mut Vec<Watched>) {
    watched.retain(|entry| {
        let mut is_over = false;
        // A log subscriber may panic, and a waker when it is dropped. Each entry alone, because the
        // others have tasks of their own; the entry of a panic stays.
        panics::contain(|| is_over = look_at(entry));
        !is_over
    });
}

/// Wakes the task of an event that is done or has failed. Whether the event needs no watching any
/// more: after a failure the task decides, which drops the watch if it finds the same.
fn look_at(entry: &Watched) -> bool {
    let Some(waker) = entry.waker.upgrade() else { return true };
    let lock = || waker.lock().unwrap_or_else(PoisonError::into_inner);
    if lock().is_none() {
        // The task has not polled yet, or not since it was woken.
        return false;
    }
    let done = entry.event.is_done();
    if done == Ok(false) {
        return false;
    }
    let waker = lock().take();
    // Outside the lock, because this is code of the task's executor, and may panic.
    panics::contain(|| waker.into_iter().for_each(Waker::wake));
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;
    use std::task::Wake;

    use rdma_cuda_stand_in::Control;

    use super::*;
    use crate::{CudaError, Stream, testing};

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

    /// A stream that is held back until the sender is dropped, an event in it, and its entry with
    /// the task's waker.
    struct Held {
        stream: Stream,
        hold: Sender<()>,
        waker: Arc<Mutex<Option<Waker>>>,
        woken: Receiver<()>,
    }

    impl Held {
        fn new(watched: &mut Vec<Watched>) -> Self {
            let stream = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
            let (hold, held) = channel::<()>();
            stream.call_on_host(move || assert!(held.recv().is_err())).unwrap();
            let (sender, woken) = std::sync::mpsc::sync_channel(1);
            let waker = Arc::new(Mutex::new(Some(Waker::from(Arc::new(Tells(sender))))));
            watched.push(Watched { event: stream.record().unwrap(), waker: Arc::downgrade(&waker) });
            Self { stream, hold, waker, woken }
        }

        fn finish(self) -> (Receiver<()>, Arc<Mutex<Option<Waker>>>) {
            drop(self.hold);
            self.stream.synchronize().unwrap();
            (self.woken, self.waker)
        }
    }

    /// The task looks again, finds that the work goes on, and sleeps.
    #[test]
    fn a_look_that_fails_does_not_end_the_watch() {
        let mut watched = Vec::new();
        let held = Held::new(&mut watched);
        let again = held.waker.lock().unwrap().clone();
        Control::new().fail_next("cuEventQuery", CudaError::UNKNOWN);
        look_at_all(&mut watched);
        held.woken.try_recv().expect("the task learns of the failure");
        *held.waker.lock().unwrap() = again;
        look_at_all(&mut watched);
        assert!(held.woken.try_recv().is_err(), "the work goes on");
        let (woken, _waker) = held.finish();
        look_at_all(&mut watched);
        woken.try_recv().expect("the work is done");
        assert!(watched.is_empty());
    }

    #[test]
    fn a_panic_of_one_look_keeps_no_other_task_asleep() {
        let mut watched = Vec::new();
        let [first, second] = [(); 2].map(|()| Held::new(&mut watched).finish());
        let subscriber = rdma_test_support::OnEvent(|_: &tracing::Event<'_>| panic!("expected by the test"));
        Control::new().fail_next("cuCtxPopCurrent_v2", CudaError::UNKNOWN);
        tracing::subscriber::with_default(subscriber, || look_at_all(&mut watched));
        assert!(first.0.try_recv().is_err(), "the look has panicked");
        second.0.try_recv().expect("the work is done");
        look_at_all(&mut watched);
        first.0.try_recv().expect("the entry has stayed");
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
