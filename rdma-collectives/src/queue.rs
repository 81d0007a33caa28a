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
//! Nobody can change memory in flight: it moves into the operation, and comes back with the result,
//! be it a success or a failure. The first operation that fails ends the queue: its failure is also
//! the result of every later operation.

mod memory;
mod operations;
mod pending;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::Error;
use crate::communicator::Communicator;

pub use self::memory::{OwnedSource, OwnedTarget};
use self::pending::Stop;
pub use self::pending::{OperationError, Pending, Started, StartedWith};
pub(crate) use self::pending::{Outcome, pair};

/// A started operation, for the thread: `Err` gives the failure of an earlier one.
type Task = Box<dyn FnOnce(Result<&mut Communicator, Error>) -> Result<(), Stop> + Send>;

/// Executes started operations on a communicator, in order, in a thread of its own: what a stream
/// is to NCCL, and `MPI_Iallreduce` and the like to MPI.
///
/// The operations have the names of the communicator's. Memory moves in and comes back:
///
/// ```no_run
/// use rdma_collectives::{Error, Queue, Reduction, Tensor};
///
/// fn step(queue: &Queue, gradients: Tensor<f32>, loss: f64) -> Result<(Tensor<f32>, f64), Error> {
///     let gradients = queue.all_reduce_in_place(gradients, Reduction::Avg);
///     let loss = queue.all_reduce_in_place([loss], Reduction::Max);
///     // The program computes meanwhile.
///     Ok((gradients.wait()?, loss.wait()?[0]))
/// }
/// ```
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
    thread: JoinHandle<Result<Communicator, Error>>,
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
    /// before. Every rank starts the same operations in the same order. If an earlier one has
    /// failed, `operation` does not run.
    ///
    /// What the operation captures is dropped if it fails: [`start_with`](Self::start_with) is for
    /// memory that has to come back.
    ///
    /// ```no_run
    /// use rdma_collectives::{Pending, Queue, Reduction};
    ///
    /// fn slowest(queue: &Queue, own: f64) -> Pending<f64> {
    ///     queue.start(move |comm| {
    ///         let mut slowest = [own];
    ///         comm.all_reduce_in_place(&mut slowest, Reduction::Max)?;
    ///         Ok(slowest[0])
    ///     })
    /// }
    /// ```
    pub fn start<R: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Communicator) -> Result<R, Error> + Send + 'static,
    ) -> Pending<R> {
        self.submit((), |comm, ()| operation(comm), |(), value| value, |(), error| error)
    }

    /// Starts an operation on some memory, as [`start`](Self::start) does. The memory comes back
    /// with the result, also if the operation fails, panics, or does not run.
    ///
    /// ```no_run
    /// use rdma_collectives::{Operation, Queue, StartedWith, Tensor};
    ///
    /// type Prepared = (Operation, Tensor<f32>);
    ///
    /// /// Starts a prepared operation, in place.
    /// fn perform(queue: &Queue, prepared: Prepared) -> StartedWith<Prepared, ()> {
    ///     queue.start_with(prepared, |comm, (operation, tensor)| comm.perform(operation, tensor, tensor))
    /// }
    /// ```
    pub fn start_with<M: Send + 'static, R: Send + 'static>(
        &self,
        memory: M,
        operation: impl FnOnce(&mut Communicator, &mut M) -> Result<R, Error> + Send + 'static,
    ) -> StartedWith<M, R> {
        self.submit(memory, operation, |memory, value| (memory, value), OperationError::new)
    }

    /// Starts an operation whose result is its memory.
    fn start_on<M: Send + 'static>(
        &self,
        memory: M,
        operation: impl FnOnce(&mut Communicator, &mut M) -> Result<(), Error> + Send + 'static,
    ) -> Started<M> {
        self.submit(memory, operation, |memory, ()| memory, OperationError::new)
    }

    fn submit<M: Send + 'static, V: 'static, R: Send + 'static, E: Send + 'static>(
        &self,
        memory: M,
        operation: impl FnOnce(&mut Communicator, &mut M) -> Result<V, Error> + Send + 'static,
        success: fn(M, V) -> R,
        failure: fn(M, Error) -> E,
    ) -> Pending<R, E> {
        let (outcome, pending) = pair(self.thread.thread().id(), memory, failure);
        let task: Task = Box::new(move |comm| outcome.run(comm, operation, success));
        // If the thread has ended, the task is dropped, of which the handle learns.
        drop(self.tasks.send(task));
        pending
    }

    /// Waits for all started operations and returns the communicator, also if operations have
    /// failed. Their handles stay valid.
    ///
    /// # Errors
    /// If an operation panicked: the communicator is dropped then.
    pub fn finish(self) -> Result<Communicator, Error> {
        let Self { is_dropped: _is_dropped, tasks, thread } = self;
        drop(tasks);
        thread.join().unwrap_or_else(|_| Err(Error::new("the thread of a queue panicked")))
    }
}

/// Executes tasks until the queue ends, and returns the communicator.
fn execute(comm: Communicator, tasks: &Receiver<Task>, is_dropped: &AtomicBool) -> Result<Communicator, Error> {
    let mut comm = Ok(comm);
    let mut failed: Option<Error> = None;
    for task in tasks {
        if is_dropped.load(Ordering::Acquire) {
            break;
        }
        let usable = comm.as_mut().map_err(|error: &mut Error| error.clone());
        match task(usable.and_then(|comm| failed.clone().map_or(Ok(comm), Err))) {
            Ok(()) => {}
            Err(Stop::Failed(error)) => failed = failed.or(Some(error)),
            Err(Stop::Panicked(error)) => comm = Err(error),
        }
    }
    comm
}

#[cfg(test)]
mod tests;
