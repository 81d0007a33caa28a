//! Requests of several tasks to one queue pair.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::registered::Registered;
use super::turns::{Turn, Turns};
use super::{Error, Finished, InFlight};
use crate::error::{Error as VerbError, ErrorKind, Result as VerbResult, Verb};
use crate::panics::Panics;
use crate::qp::divided::{Divided, Part};
use crate::qp::op::{Operation, Work};
use crate::qp::send::Submitted;
use crate::qp::{Owned, PostError, QpControl, SendQueue};
use crate::transport::Transport;

/// The send half of a queue pair that several tasks post to: each awaits its own requests.
///
/// Clones are handles to the same half. It has a lock, as `ibv_post_send` has one; a half that one
/// task posts to needs none: [`SendHalf`](super::SendHalf). The queue pair ends when all requesters
/// and its [`RecvHalf`](super::RecvHalf) are gone, or with an error when one of them
/// [closes](Self::close) it.
///
/// # Examples
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ends { pd, a, b: _b } = ends()?;
/// # let table = pd.allocate_exposed(64, rdma::RemoteAccess::READ)?;
/// # let table = table.remote(..)?;
/// use rdma::op;
///
/// let (send, _recv) = a.into_split();
/// let requester = send.into_requester();
/// let readers: Vec<_> = (0..4)
///     .map(|at| {
///         let (requester, buffer) = (requester.clone(), pd.allocate(16)?);
///         let entry = table.slice(at * 16..(at + 1) * 16)?;
///         // A task of the runtime.
///         Ok(std::thread::spawn(move || {
///             block_on(async { requester.post(op::read(buffer, entry)).await.into_memory() })
///         }))
///     })
///     .collect::<Result<_, Box<dyn std::error::Error>>>()?;
/// for reader in readers {
///     println!("{:?}", &reader.join().expect("no panic")?[..]);
/// }
/// # Ok(()) }
/// ```
pub struct Requester<T: Transport> {
    shared: Arc<Requests<T>>,
}

/// A free slot of a [`Requester`]'s queue, for one request: [`Requester::reserve`].
///
/// Dropping it gives the slot to the next task. Forgetting it takes the slot from all tasks for as
/// long as the queue pair lives.
#[must_use = "the slot is held only until this is dropped"]
pub struct ReservedSlot<'a, T: Transport> {
    requests: &'a Requests<T>,
    is_used: bool,
}

/// What the requesters of one queue pair share.
struct Requests<T: Transport> {
    queue: Mutex<Queue<T>>,
    /// Grants turns when a slot has become free.
    on_room: Waker,
    divided: Arc<Divided<T, Registered>>,
}

/// The send queue, and the tasks that wait for its slots.
struct Queue<T: Transport> {
    part: Part<SendQueue, T, Registered>,
    turns: Turns,
}

/// Wakes the tasks of requesters: the task of the send queue's results.
struct OnRoom<T: Transport>(Weak<Requests<T>>);

impl<T: Transport> Wake for OnRoom<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(requests) = self.0.upgrade() {
            requests.grant();
        }
    }
}

/// A task's turn for a slot. Its drop gives the turn up.
struct Wait<'a, T: Transport> {
    requests: &'a Requests<T>,
    turn: Option<u64>,
}

impl<T: Transport> Requester<T> {
    pub(super) fn new(part: Part<SendQueue, T, Registered>) -> Self {
        let divided = Arc::clone(part.divided());
        // The wakers of the half's own task: nobody but turns waits for a slot from now on.
        divided.extra().forget_owner();
        let shared = Arc::new_cyclic(|weak| Requests {
            queue: Mutex::new(Queue { part, turns: Turns::default() }),
            on_room: Waker::from(Arc::new(OnRoom(Weak::clone(weak)))),
            divided,
        });
        Self { shared }
    }

    /// Posts a request, and waits until it has ended. Waits first for a free slot if the queue is
    /// full, after the tasks that have waited before.
    ///
    /// Dropping the future before the request is posted drops the request; afterwards the request
    /// goes on, and its completion frees its memory.
    ///
    /// The [status](Finished::status) of a request that was not posted is
    /// [`Error::Refused`], with the error of [`QueuePair::post_send`](crate::QueuePair::post_send);
    /// its memory comes back as that of any other.
    pub async fn post<O: Operation<T>, L: Owned>(&self, work: Work<O, L>) -> Finished<L::Returned> {
        match self.reserve().await {
            Ok(slot) => match slot.start(work) {
                Ok(sent) => sent.await,
                Err(refused) => {
                    let (error, local) = refused.into_parts();
                    Finished { status: Err(Error::Refused(error)), local }
                }
            },
            Err(error) => Finished { status: Err(error), local: Some(work.into_local().give_back()) },
        }
    }

    /// Posts a request, always signaled, and returns the future of its completion.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`](crate::QueuePair::post_send); `QueueFull` also while other
    /// tasks [wait](Self::reserve) for a slot; `Ended` after the queue pair was
    /// [closed](Self::close) or shut down.
    #[inline]
    pub fn start<O: Operation<T>, L: Owned>(
        &self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        let requests = &*self.shared;
        if let Err(error) = requests.check() {
            return Err(PostError::refused(error, work.into_local()));
        }
        let mut queue = requests.lock();
        let Queue { part, turns } = &mut *queue;
        if !turns.is_empty() || !part.queue_mut().has_room_after(turns.reserved()) {
            drop(queue);
            let full = VerbError::new(Verb::PostSend, ErrorKind::QueueFull);
            return Err(PostError::refused(full, work.into_local()));
        }
        let submitted = part.queue_mut().submit_routed::<T, O, L>(work);
        drop(queue);
        requests.settle(submitted)
    }

    /// Waits for a free slot for a request. Tasks get slots in the order in which they began to
    /// wait. Dropping the future gives up the task's place, and loses nothing.
    ///
    /// # Errors
    ///
    /// `DriverGone` if no completion would free a slot; `Forked`; `Refused` after the queue pair
    /// was [closed](Self::close) or shut down.
    pub async fn reserve(&self) -> Result<ReservedSlot<'_, T>, Error> {
        let mut wait = Wait { requests: &self.shared, turn: None };
        poll_fn(|cx| wait.poll(cx)).await?;
        Ok(ReservedSlot { requests: &self.shared, is_used: false })
    }

    /// Ends the queue pair for all of its handles: moves it to the error state, and refuses further
    /// requests with the error `Ended`. Requests in flight end with the status `WR_FLUSH_ERR`.
    ///
    /// # Errors
    ///
    /// An error of the change to the error state.
    pub fn close(&self) -> VerbResult<()> {
        self.shared.divided.extra().end();
        let closed = self.control().set_error();
        self.shared.grant();
        closed
    }

    /// The number of requests whose future was dropped and that have not ended.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.shared.divided.extra().abandoned()
    }

    /// The queue pair, without its work queues.
    #[must_use]
    pub fn control(&self) -> QpControl<'_, T> {
        self.shared.divided.control()
    }
}

impl<T: Transport> ReservedSlot<'_, T> {
    /// Posts a request: [`Requester::start`]. A slot is free for it.
    ///
    /// # Errors
    ///
    /// As for [`Requester::start`].
    pub fn start<O: Operation<T>, L: Owned>(
        mut self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        let requests = self.requests;
        if let Err(error) = requests.check() {
            return Err(PostError::refused(error, work.into_local()));
        }
        let mut queue = requests.lock();
        let Queue { part, turns } = &mut *queue;
        let submitted = part.queue_mut().submit_routed::<T, O, L>(work);
        // The slot is used, or is for others again.
        turns.release();
        self.is_used = true;
        let is_awaited = !turns.is_empty();
        drop(queue);
        let posted = requests.settle(submitted);
        if is_awaited {
            requests.grant();
        }
        posted
    }
}

impl<T: Transport> Drop for ReservedSlot<'_, T> {
    fn drop(&mut self) {
        if self.is_used || self.requests.is_forked() {
            return;
        }
        self.requests.lock().turns.release();
        self.requests.grant();
    }
}

impl<T: Transport> Requests<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Only failed allocations panic under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a forked child, in which no function that takes the lock may be called.
    fn is_forked(&self) -> bool {
        self.divided.extra().is_forked()
    }

    /// Fails in a forked child, and once the queue pair has ended.
    fn check(&self) -> VerbResult<()> {
        let kind = match self.divided.extra() {
            extra if extra.is_forked() => ErrorKind::Forked,
            extra if extra.is_ended() => ErrorKind::Ended,
            _ => return Ok(()),
        };
        Err(VerbError::new(Verb::PostSend, kind))
    }

    /// The future of a request that was submitted under the lock.
    #[inline]
    fn settle<L: Owned>(
        &self,
        submitted: Result<Submitted<L>, PostError<L::Returned>>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        // Vectors of segments that cannot be told apart do not compile.
        let _ = const { L::SEGMENTS };
        let ticket = submitted?.settle()?;
        Ok(InFlight::new(self.divided.extra().sent, ticket, L::collect))
    }

    /// Grants turns while slots are free, and wakes their tasks (T3 of [`turns`](super::turns)).
    fn grant(&self) {
        if self.is_forked() {
            return;
        }
        let mut panics = Panics::default();
        loop {
            // A statement of its own, so that the lock is not held while the task is woken.
            let granted = self.lock().grant(&self.on_room);
            let Some(task) = granted else { break };
            panics.catch(|| task.wake());
        }
        panics.resume();
    }
}

impl<T: Transport> Queue<T> {
    /// Grants the first turn if it can be granted; `on_room` does it otherwise, when a slot is
    /// free.
    fn grant(&mut self, on_room: &Waker) -> Option<Waker> {
        let Self { part, turns } = self;
        turns.grant(|reserved| {
            if part.divided().extra().is_ended() {
                return Poll::Ready(false);
            }
            let results = part.divided().extra().sent;
            let queue = part.queue_mut();
            if reserved >= queue.depth() {
                // The next slot is free for others once one of these is.
                return Poll::Pending;
            }
            // Sends end in order, so the request in the next slot frees it first.
            let first = queue.routed_after(reserved);
            results.poll_owner(&Context::from_waker(on_room), first, || queue.has_room_after(reserved))
        })
    }
}

impl<T: Transport> Wait<'_, T> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let requests = self.requests;
        if requests.is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        if let Err(error) = requests.check() {
            return Poll::Ready(Err(Error::Refused(error)));
        }
        let turn = match self.turn {
            None if self.reserve_at_once() => return Poll::Ready(Ok(())),
            // Wakers are the program's: they are cloned and dropped outside of the lock.
            None => {
                let task = cx.waker().clone();
                let turn = requests.lock().turns.add(task);
                self.turn = Some(turn);
                requests.grant();
                turn
            }
            Some(turn) => {
                let task = cx.waker().clone();
                let unused = requests.lock().turns.renew(turn, task);
                drop(unused);
                turn
            }
        };
        let state = requests.lock().turns.look(turn);
        match state {
            Turn::Waiting => Poll::Pending,
            Turn::Granted => {
                self.turn = None;
                Poll::Ready(Ok(()))
            }
            Turn::Lost => match requests.check() {
                Err(error) => Poll::Ready(Err(Error::Refused(error))),
                Ok(()) => Poll::Ready(Err(Error::DriverGone)),
            },
        }
    }

    fn reserve_at_once(&self) -> bool {
        let mut queue = self.requests.lock();
        let Queue { part, turns } = &mut *queue;
        let is_free = turns.is_empty() && part.queue_mut().has_room_after(turns.reserved());
        if is_free {
            turns.reserve();
        }
        is_free
    }
}

impl<T: Transport> Drop for Wait<'_, T> {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        if self.requests.is_forked() {
            return;
        }
        let task = self.requests.lock().turns.leave(turn);
        let mut panics = Panics::default();
        panics.catch(|| drop(task));
        panics.catch(|| self.requests.grant());
        panics.resume();
    }
}

impl<T: Transport> Clone for Requester<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Transport> fmt::Debug for Requester<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("qp", &self.control()).finish_non_exhaustive()
    }
}

impl<T: Transport> fmt::Debug for ReservedSlot<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedSlot").finish_non_exhaustive()
    }
}
