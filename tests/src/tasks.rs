//! Futures and drivers on threads, with a limit in time: a wake-up that is lost fails the test.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

use rdma::aio::Driver;

use crate::LIMIT;
use crate::report::timed_out;

/// Waits for a future on this thread: [`rdma::aio::block_on`] with a limit.
///
/// # Panics
///
/// If the future is not ready within [`LIMIT`].
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unparks(Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let begin = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let waited = begin.elapsed();
        let Some(left) = LIMIT.checked_sub(waited) else { timed_out("wake-up", waited) };
        thread::park_timeout(left);
    }
}

/// A thread that turns a driver until no queue pair and no handle uses it.
#[derive(Debug)]
pub struct Driving {
    thread: JoinHandle<()>,
    /// Nothing is sent: its other side is dropped when the thread ends.
    ended: Receiver<()>,
}

/// Turns a driver on a thread of its own.
///
/// # Panics
///
/// The thread, if the device fails: [`Driving::join`] then panics, too.
#[must_use]
pub fn drive(mut driver: Driver) -> Driving {
    let (ends, ended): (Sender<()>, _) = channel();
    let thread = thread::spawn(move || {
        let _ends = ends;
        while driver.is_used() {
            driver.wait(None).expect("a working device");
        }
    });
    Driving { thread, ended }
}

impl Driving {
    /// Waits until the driver has ended.
    ///
    /// # Panics
    ///
    /// If it does not end within [`LIMIT`], or if its thread has panicked.
    #[track_caller]
    pub fn join(self) {
        let begin = Instant::now();
        if self.ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            timed_out("end of the driver", begin.elapsed());
        }
        self.thread.join().expect("a driver that does not panic");
    }
}

/// Waits for both futures.
///
/// # Panics
///
/// If one of them does.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none() {
            first = ready(a.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(b.as_mut().poll(cx));
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.expect("it is ready"), second.expect("it is ready"))
}

/// What a poll has returned, if it was ready.
pub fn ready<T>(polled: Poll<T>) -> Option<T> {
    match polled {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
