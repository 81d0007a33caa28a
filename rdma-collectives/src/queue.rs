//! Non-blocking collectives: a [`Queue`] owns a communicator and executes started operations in
//! the background, while the caller computes.
//!
//! A thread executes the operations one after the other, in the order in which they were started,
//! as a stream of NCCL does. Interleaving would need a tag in every message and every counter,
//! because the messages of two ranks match by their order alone. It would gain nothing: each
//! operation can fill the link. Operations that must not wait for each other belong to
//! communicators of their own.
//!
//! Every rank has to start the same operations in the same order. As with blocking calls, ranks
//! that do not are told about a second later.
//!
//! Nobody can change a tensor in flight: it moves into the operation, and [`Pending::wait`] gives
//! it back. The first operation that fails ends the queue: its failure is also the result of every
//! later operation.

mod pending;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::Error;
use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::tensor::Tensor;

pub use self::pending::Pending;
use self::pending::pair;

/// A started operation, for the thread: `Err` gives the failure of an earlier one.
type Task = Box<dyn FnOnce(Result<&mut Communicator, Error>) -> Result<(), Error> + Send>;

/// Executes started operations on a communicator, in order, in a thread of its own: what a stream
/// is to NCCL, and `MPI_Iallreduce` and the like to MPI.
///
/// The thread runs on the cores on which the thread that made the queue may run.
///
/// Dropping the queue does not wait: operations that have not begun never run, and their handles
/// return a failure. An operation in progress goes on, until it ends or the other ranks make no
/// progress for the communicator's stall time.
#[derive(Debug)]
pub struct Queue {
    /// Set before the sender is dropped, so that the thread begins no further task.
    is_dropped: SetOnDrop,
    tasks: Sender<Task>,
    thread: JoinHandle<Communicator>,
}

/// A flag that is set when this side of it is dropped.
#[derive(Debug)]
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Queue {
    /// Starts the thread, which owns the communicator until [`finish`](Self::finish).
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(comm: Communicator) -> Result<Self, Error> {
        let (tasks, inbox) = channel();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_dropped);
        let thread = std::thread::Builder::new().name("collectives".to_owned());
        let thread = thread.spawn(move || execute(comm, &inbox, &flag));
        let thread = thread.map_err(|error| Error::not_started("the thread of the collectives", &error))?;
        Ok(Self { is_dropped: SetOnDrop(is_dropped), tasks, thread })
    }

    /// Starts an operation: `operation` runs in the queue's thread, after those that were started
    /// before. Tensors should move in, and come back in its result. Every rank starts the same
    /// operations in the same order. If an earlier one has failed, `operation` does not run.
    ///
    /// ```no_run
    /// use rdma_collectives::{Pending, Queue, Tensor};
    ///
    /// fn broadcast(queue: &Queue, weights: Tensor<f32>) -> Pending<Tensor<f32>> {
    ///     queue.start(move |comm| {
    ///         comm.broadcast(&weights, 0)?;
    ///         Ok(weights)
    ///     })
    /// }
    /// ```
    pub fn start<R: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Communicator) -> Result<R, Error> + Send + 'static,
    ) -> Pending<R> {
        let (outcome, pending) = pair();
        let task: Task = Box::new(move |comm| {
            let result = comm.and_then(operation);
            let done = result.as_ref().map(drop).map_err(Error::clone);
            outcome.give(result);
            done
        });
        // If the thread has ended, the task is dropped, of which the handle learns.
        drop(self.tasks.send(task));
        pending
    }

    /// Starts an all-reduce of the first `count` elements of a tensor, in place; the handle gives
    /// the tensor back.
    ///
    /// This is MPI's `MPI_Iallreduce`.
    #[doc(alias = "MPI_Iallreduce")]
    pub fn all_reduce<T: Element>(&self, tensor: Tensor<T>, count: usize, reduction: Reduction) -> Pending<Tensor<T>> {
        self.start(move |comm| {
            comm.all_reduce_in_place(tensor.target(count), reduction)?;
            Ok(tensor)
        })
    }

    /// Waits for all started operations and returns the communicator, also if operations have
    /// failed. Their handles stay valid.
    ///
    /// # Errors
    /// If an operation panicked.
    pub fn finish(self) -> Result<Communicator, Error> {
        let Self { is_dropped: _is_dropped, tasks, thread } = self;
        drop(tasks);
        thread.join().map_err(|_| Error::new("a started operation panicked"))
    }
}

/// Executes tasks until the queue ends, and returns the communicator.
fn execute(mut comm: Communicator, tasks: &Receiver<Task>, is_dropped: &AtomicBool) -> Communicator {
    let mut failed: Option<Error> = None;
    for task in tasks {
        if is_dropped.load(Ordering::Acquire) {
            break;
        }
        let outcome = task(failed.clone().map_or(Ok(&mut comm), Err));
        failed = failed.or(outcome.err());
    }
    comm
}

#[cfg(test)]
mod tests;
