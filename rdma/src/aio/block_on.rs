//! The smallest executor: one future on this thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future on this thread until it is ready; the thread sleeps while the future waits.
///
/// Another thread or task must drive what the future waits for. A program without executor and
/// without a second thread polls its futures itself instead:
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// # fn drive() {}
/// # let future = std::future::ready(7);
/// let mut future = pin!(future);
/// let mut cx = Context::from_waker(Waker::noop());
/// let answer = loop {
///     match future.as_mut().poll(&mut cx) {
///         Poll::Ready(answer) => break answer,
///         Poll::Pending => drive(),
///     }
/// };
/// assert_eq!(answer, 7);
/// ```
///
/// # Examples
///
/// ```
/// assert_eq!(rdma::aio::block_on(async { 3 + 4 }), 7);
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // A wake-up between the poll and this call makes the call return at once.
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::poll_fn;
    use std::sync::mpsc;

    #[test]
    fn a_future_that_another_thread_wakes_is_polled_again() {
        let (send, receive) = mpsc::channel::<Waker>();
        let waking = thread::spawn(move || receive.recv().unwrap().wake());
        let mut polls = 0;
        let future = poll_fn(|cx| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(polls);
            }
            send.send(cx.waker().clone()).unwrap();
            Poll::Pending
        });
        assert_eq!(block_on(future), 2);
        waking.join().unwrap();
    }
}
