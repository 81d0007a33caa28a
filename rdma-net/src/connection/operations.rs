//! The one-sided operations of a connection, from their begin to their result.
//!
//! An operation takes a slot, and is posted at once, unless it or one before it is a notification
//! that has no credit: then it is queued. Operations that begin together share a doorbell. The
//! first of them, their leader, has the task that waits for all, and each names the next one.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use rdma::op;
use rdma::{Batch as PostBatch, Buffer, Error, ErrorKind, PostError, RemoteSlice, Verb};

use crate::failure::Failure;
use crate::link::{Link, READ_BIT};
use crate::waiters::{Task, Waiters};

/// Length of the memory of an atomic operation in bytes.
pub(super) const WORD: usize = 8;

/// A one-sided operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Read(RemoteSlice),
    /// Writes the first bytes of the buffer.
    Write(RemoteSlice, usize),
    /// Writes the first bytes of the buffer, and notifies the peer.
    WriteImm(RemoteSlice, usize, u32),
    CompareSwap(RemoteSlice, u64, u64),
    FetchAdd(RemoteSlice, u64),
}

impl Request {
    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap(..) | Self::FetchAdd(..))
    }

    /// Whether the operation takes a receive of the peer.
    pub(super) fn is_notification(self) -> bool {
        matches!(self, Self::WriteImm(..))
    }
}

/// The result of an operation: the caller's buffer, or the old value of an atomic operation.
#[derive(Debug)]
pub(super) enum Finished {
    Buffer(Buffer),
    OldValue(u64),
}

/// The operations that have begun, and the tasks that wait for a slot.
#[derive(Debug)]
pub(super) struct Operations {
    /// By number, from 1 on.
    running: Vec<Option<Running>>,
    /// Places of `running` that are free.
    free: Vec<u32>,
    /// Operations that have begun and not completed. A result that nobody takes occupies no slot.
    in_flight: u32,
    /// Slots.
    most: u32,
    /// Operations that are not posted. The first is a notification without a credit, unless the
    /// connection has ended.
    queued: VecDeque<Queued>,
    /// Memory for atomic operations.
    words: Vec<Buffer>,
    pub(super) waiters: Waiters,
    /// Slots for which the first waiting task waits, as far as it is known.
    pub(super) wanted: u32,
}

/// An operation that is not posted.
#[derive(Debug)]
struct Queued {
    id: u32,
    request: Request,
    memory: Buffer,
}

#[derive(Debug)]
struct Running {
    is_atomic: bool,
    /// Whether the future was dropped, so that nobody takes the result.
    is_abandoned: bool,
    result: Option<Result<Finished, Failure>>,
    /// The first of the operations that have begun with this one.
    leader: u32,
    /// The next of them; 0 if this is the last.
    next: u32,
    /// Of a leader: the operations without a result.
    left: u32,
    /// Of a leader: the task that waits for all.
    waker: Option<Waker>,
}

/// What the end of a step leaves to be woken and dropped once no lock is held.
#[derive(Debug, Default)]
pub(super) struct Leftover {
    /// A task to wake.
    pub(super) waker: Option<Waker>,
    /// The waker of a task that waits no longer.
    pub(super) stale: Option<Waker>,
    pub(super) memory: Option<Buffer>,
}

impl Leftover {
    fn of(result: Result<Finished, Failure>) -> Self {
        let memory = if let Ok(Finished::Buffer(buffer)) = result { Some(buffer) } else { None };
        Self { memory, ..Self::default() }
    }
}

/// What [`Operations::post`] has done.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Operations, of which some are notifications.
    pub(super) operations: u32,
    pub(super) notifications: u32,
    /// Operations that were refused, with their memory.
    pub(super) refused: Vec<(u32, Option<Buffer>, Error)>,
    /// The error of the doorbell, to be logged once no lock is held.
    pub(super) failed: Option<PostError<Buffer>>,
}

impl Operations {
    pub(super) fn new(words: Vec<Buffer>, most: u32) -> Self {
        Self {
            running: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            most,
            queued: VecDeque::new(),
            words,
            waiters: Waiters::default(),
            wanted: 1,
        }
    }

    /// Whether so many operations may begin.
    pub(super) fn has_room(&self, count: u32) -> bool {
        self.in_flight.saturating_add(count) <= self.most
    }

    /// Whether operations wait to be posted.
    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    fn get(&mut self, id: u32) -> Option<&mut Running> {
        self.running.get_mut((id as usize).wrapping_sub(1))?.as_mut()
    }

    fn remove(&mut self, id: u32) -> Option<Running> {
        let removed = self.running.get_mut((id as usize).wrapping_sub(1))?.take();
        if removed.is_some() {
            self.free.push(id);
        }
        removed
    }

    /// Begins an operation, which has a slot, and returns its number: after others of which the
    /// first and the last are given, or alone. An atomic operation takes no buffer.
    /// [`post`](Self::post) posts it.
    ///
    /// Its number is none that a message or a read of an offer has: those have 0 and [`READ_BIT`].
    /// A number is free again after the completion, so no completion meets another operation.
    pub(super) fn begin(&mut self, request: Request, buffer: Option<Buffer>, after: Option<(u32, u32)>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.running.push(None);
            u32::try_from(self.running.len()).unwrap_or(u32::MAX)
        });
        debug_assert!(id & READ_BIT == 0, "more operations than numbers");
        let is_atomic = request.is_atomic();
        let running = Running {
            is_atomic,
            is_abandoned: false,
            result: None,
            leader: after.map_or(id, |(leader, _)| leader),
            next: 0,
            left: u32::from(after.is_none()),
            waker: None,
        };
        self.running[id as usize - 1] = Some(running);
        if let Some((leader, last)) = after {
            self.get(last).into_iter().for_each(|last| last.next = id);
            self.get(leader).into_iter().for_each(|leader| leader.left += 1);
        }
        self.in_flight += 1;
        // Each slot has a word, unless the device has kept that of a request that failed.
        match if is_atomic { self.words.pop() } else { buffer } {
            Some(memory) => self.queued.push_back(Queued { id, request, memory }),
            None => drop(self.fail(id, None, Error::new(Verb::PostSend, ErrorKind::OutOfMemory))),
        }
        id
    }

    /// Posts what is queued, up to a notification for which there is no credit: so many are there.
    /// As many requests as the queue pair takes at a time, which are 64 or more, have one doorbell.
    pub(super) fn post(&mut self, link: &mut Link, token: u64, credits: u32) -> Posted {
        let mut posted = Posted::default();
        let mut is_full = true;
        while is_full {
            let mut batch = link.qp.batch();
            is_full = self.fill(&mut batch, token, credits, &mut posted);
            let Err(mut failed) = batch.submit_unlogged() else { continue };
            let error = failed.error();
            posted.failed = Some(failed.without_requests());
            while let Some(mut rejected) = failed.next_rejected() {
                posted.operations -= 1;
                posted.refused.push((number(rejected.token()), rejected.take_buffer(), error));
            }
        }
        posted
    }

    /// Moves requests from the queue to a batch. Returns whether the batch takes no more.
    fn fill(&mut self, batch: &mut PostBatch<'_, '_>, token: u64, credits: u32, posted: &mut Posted) -> bool {
        while let Some(next) = self.queued.front() {
            if next.request.is_notification() && posted.notifications == credits {
                break;
            }
            let Some(Queued { id, request, memory }) = self.queued.pop_front() else { break };
            let token = u64::from(id) << 32 | token;
            let pushed = match request {
                Request::Read(from) => batch.push(op::read(memory, from).token(token)),
                Request::Write(to, len) => batch.push(op::write(memory.part(..len), to).token(token)),
                Request::WriteImm(to, len, imm) => batch.push(op::write_imm(memory.part(..len), to, imm).token(token)),
                Request::CompareSwap(at, compare, swap) => {
                    batch.push(op::compare_swap(memory, at, compare, swap).token(token))
                }
                Request::FetchAdd(at, add) => batch.push(op::fetch_add(memory, at, add).token(token)),
            };
            let Err(refused) = pushed else {
                posted.operations += 1;
                posted.notifications += u32::from(request.is_notification());
                continue;
            };
            let (error, is_full) = (refused.error(), refused.kind() == ErrorKind::QueueFull && !batch.is_empty());
            match refused.into_memory() {
                Some(memory) if is_full => {
                    self.queued.push_front(Queued { id, request, memory });
                    return true;
                }
                memory => posted.refused.push((id, memory, error)),
            }
        }
        false
    }

    /// Ends an operation that was not posted.
    pub(super) fn fail(&mut self, id: u32, memory: Option<Buffer>, error: Error) -> Leftover {
        let is_atomic = self.get(id).is_some_and(|running| running.is_atomic);
        let (word, memory) = if is_atomic { (memory, None) } else { (None, memory) };
        self.words.extend(word);
        let Leftover { waker, stale, memory: other } = self.complete(id, Err(error.into()));
        Leftover { waker, stale, memory: memory.or(other) }
    }

    /// Takes the result of an operation.
    pub(super) fn finish(&mut self, id: u32, buffer: Buffer, old_value: Option<u64>) -> Leftover {
        match self.get(id) {
            None => Leftover { memory: Some(buffer), ..Leftover::default() },
            Some(running) if running.is_atomic => {
                self.words.push(buffer);
                self.complete(id, Ok(Finished::OldValue(old_value.unwrap_or(0))))
            }
            Some(_) => self.complete(id, Ok(Finished::Buffer(buffer))),
        }
    }

    fn complete(&mut self, id: u32, result: Result<Finished, Failure>) -> Leftover {
        let Some(running) = self.get(id) else { return Leftover::of(result) };
        let leader = running.leader;
        let abandoned = if running.is_abandoned {
            Some(result)
        } else {
            running.result = Some(result);
            None
        };
        self.in_flight -= 1;
        if let Some(result) = abandoned {
            self.remove(id);
            return Leftover::of(result);
        }
        // A leader whose task waits has its place until all have results.
        let Some(leader) = self.get(leader) else { return Leftover::default() };
        leader.left -= 1;
        let waker = if leader.left == 0 { leader.waker.take() } else { None };
        Leftover { waker, ..Leftover::default() }
    }

    /// Whether the operations that have begun with this one have results; a failure once they will
    /// get none.
    pub(super) fn poll(
        &mut self,
        leader: u32,
        outcome: Option<&Failure>,
        task: &mut Task<'_>,
    ) -> Poll<Result<(), Failure>> {
        let Some(running) = self.get(leader) else { return Poll::Pending };
        if running.left == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = outcome {
            return Poll::Ready(Err(failure.clone()));
        }
        task.leave(&mut running.waker);
        Poll::Pending
    }

    /// Takes the result of an operation that has one, a waker that is no longer needed, and the
    /// number of the next operation.
    pub(super) fn take(&mut self, id: u32) -> (Option<Result<Finished, Failure>>, Option<Waker>, u32) {
        let Some(running) = self.remove(id) else { return (None, None, 0) };
        (running.result, running.waker, running.next)
    }

    /// Notes that the future of an operation was dropped. One that is not posted never happens.
    /// Returns the number of the next operation, too.
    pub(super) fn abandon(&mut self, id: u32) -> (Leftover, u32) {
        let next = self.get(id).map_or(0, |running| running.next);
        (self.abandon_one(id), next)
    }

    fn abandon_one(&mut self, id: u32) -> Leftover {
        let Some(running) = self.get(id) else { return Leftover::default() };
        running.is_abandoned = true;
        running.leader = id;
        let (stale, result) = (running.waker.take(), running.result.take());
        if let Some(result) = result {
            self.remove(id);
            return Leftover { stale, ..Leftover::of(result) };
        }
        let Some(at) = self.queued.iter().position(|queued| queued.id == id) else {
            return Leftover { stale, ..Leftover::default() };
        };
        let memory = self.queued.remove(at).map(|queued| queued.memory);
        let is_atomic = self.remove(id).is_some_and(|running| running.is_atomic);
        self.in_flight -= 1;
        let (word, memory) = if is_atomic { (memory, None) } else { (None, memory) };
        self.words.extend(word);
        Leftover { stale, memory, waker: None }
    }

    /// All tasks that wait, for the end of the connection.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let waiting = self.running.iter_mut().flatten().filter_map(|running| running.waker.take());
        waiting.chain(self.waiters.take_all()).collect()
    }

    /// The memory of the operations that will never be posted, for the end of the connection.
    pub(super) fn take_queued(&mut self) -> Vec<Buffer> {
        self.queued.drain(..).map(|queued| queued.memory).collect()
    }
}

/// The number of an operation, which a token has in its upper half.
fn number(token: u64) -> u32 {
    u32::try_from(token >> 32).unwrap_or(0)
}
