//! The frame of the programs that use [`rdma::net`]: a node, its driver and the program's tasks on
//! one thread.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rdma::Context;
use rdma::aio::tokio::Readable;
use rdma::net::{Node, NodeOptions};
use tokio::runtime::{Builder, Runtime};

use crate::Failure;

/// Longest time in which the last messages of a program leave.
const LINGER: Duration = Duration::from_secs(2);

/// Runs a program's future on this thread, beside the driver of its node: a wake-up from another
/// thread would cost more than most operations.
///
/// # Errors
/// The error of the future; errors of the device and of the runtime.
pub fn run<T, F>(context: &Context, options: &NodeOptions, work: impl FnOnce(Node) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    runtime()?.block_on(async {
        let (node, driver) = Node::new(context, options)?;
        let readable = Readable::new(&driver)?;
        let driving = tokio::spawn(driver.run(readable));
        let result = work(node).await;
        // The driver ends when the last connection has; other tasks of the program may hold some.
        match tokio::time::timeout(LINGER, driving).await {
            Ok(Ok(Err(error))) => Err(Failure::from(error)),
            _ => result,
        }
    })
}

/// A runtime for tasks on this thread.
///
/// # Errors
/// Too many open files.
pub fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Waits for two futures at the same time.
pub async fn join<A: Future, B: Future>(one: A, two: B) -> (A::Output, B::Output) {
    let (mut one, mut two) = (pin!(one), pin!(two));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none() {
            first = ready(one.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(two.as_mut().poll(cx));
        }
        if first.is_none() || second.is_none() {
            return Poll::Pending;
        }
        first.take().zip(second.take()).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    if let Poll::Ready(value) = poll { Some(value) } else { None }
}
