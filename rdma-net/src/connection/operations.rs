//! The one-sided operations of a connection that are in flight.

use std::collections::HashMap;
use std::task::{Poll, Waker};

use rdma::op;
use rdma::{Buffer, Error, ErrorKind, PostError, RemoteSlice, Verb};

use crate::failure::Failure;
use crate::link::{Link, MAX_OPERATIONS, READ_BIT};
use crate::waiters::{Task, Waiters};

/// Length of the memory of an atomic operation in bytes.
pub(super) const WORD: usize = 8;

/// A one-sided operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Read(RemoteSlice),
    /// Writes the first bytes of the buffer.
    Write(RemoteSlice, usize),
    CompareSwap(RemoteSlice, u64, u64),
    FetchAdd(RemoteSlice, u64),
}

impl Request {
    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap(..) | Self::FetchAdd(..))
    }
}

/// The result of an operation: the caller's buffer, or the old value of an atomic operation.
#[derive(Debug)]
pub(super) enum Finished {
    Buffer(Buffer),
    OldValue(u64),
}

/// The operations in flight, and the tasks that wait for a slot.
#[derive(Debug)]
pub(super) struct Operations {
    running: HashMap<u32, Running>,
    /// Those of `running` that have not completed. A result that nobody takes occupies no slot.
    in_flight: u32,
    last_id: u32,
    /// Memory for atomic operations.
    words: Vec<Buffer>,
    pub(super) waiters: Waiters,
}

#[derive(Debug)]
struct Running {
    is_atomic: bool,
    /// Whether the future was dropped, so that nobody takes the result.
    is_abandoned: bool,
    result: Option<Finished>,
    waker: Option<Waker>,
}

impl Operations {
    pub(super) fn new(words: Vec<Buffer>) -> Self {
        Self { running: HashMap::new(), in_flight: 0, last_id: 0, words, waiters: Waiters::default() }
    }

    /// Whether the send queue has a slot.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < MAX_OPERATIONS
    }

    /// Posts an operation and returns its id; [`has_room`](Self::has_room) is true. An atomic
    /// operation takes no buffer.
    pub(super) fn start(
        &mut self,
        link: &mut Link,
        token: u64,
        request: Request,
        buffer: Option<Buffer>,
    ) -> Result<u32, PostError<Buffer>> {
        // Each free slot has a free word.
        let memory = if request.is_atomic() { self.words.pop() } else { buffer };
        let Some(memory) = memory else {
            return Err(PostError::new(Error::new(Verb::PostSend, ErrorKind::OutOfMemory), None));
        };
        let id = self.new_id();
        let token = u64::from(id) << 32 | token;
        let qp = &mut link.qp;
        let posted = match request {
            Request::Read(from) => qp.post_send_unlogged(op::read(memory, from).token(token)),
            Request::Write(to, len) => qp.post_send_unlogged(op::write(memory.part(..len), to).token(token)),
            Request::CompareSwap(at, compare, swap) => {
                qp.post_send_unlogged(op::compare_swap(memory, at, compare, swap).token(token))
            }
            Request::FetchAdd(at, add) => qp.post_send_unlogged(op::fetch_add(memory, at, add).token(token)),
        };
        if let Err(mut refused) = posted {
            if request.is_atomic() {
                self.words.extend(refused.take_memory());
            }
            return Err(refused);
        }
        let running = Running { is_atomic: request.is_atomic(), is_abandoned: false, result: None, waker: None };
        self.running.insert(id, running);
        self.in_flight += 1;
        Ok(id)
    }

    /// A number that no operation in flight has, other than 0, which messages have, and those of
    /// reads of offers.
    fn new_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1) & !READ_BIT;
            if self.last_id != 0 && !self.running.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    /// Takes the result of an operation. Returns the task to wake.
    pub(super) fn finish(&mut self, id: u32, buffer: Buffer, old_value: Option<u64>) -> Option<Waker> {
        let running = self.running.get_mut(&id)?;
        self.in_flight -= 1;
        let finished = if running.is_atomic {
            self.words.push(buffer);
            Finished::OldValue(old_value.unwrap_or(0))
        } else {
            Finished::Buffer(buffer)
        };
        if running.is_abandoned {
            self.running.remove(&id);
            return None;
        }
        running.result = Some(finished);
        running.waker.take()
    }

    /// The result of an operation, once it is there, and a waker that is no longer needed.
    pub(super) fn poll(
        &mut self,
        id: u32,
        outcome: Option<&Failure>,
        task: &mut Task<'_>,
    ) -> (Poll<Result<Finished, Failure>>, Option<Waker>) {
        let Some(running) = self.running.get_mut(&id) else { return (Poll::Pending, None) };
        if let Some(finished) = running.result.take() {
            let waker = self.running.remove(&id).and_then(|running| running.waker);
            return (Poll::Ready(Ok(finished)), waker);
        }
        if let Some(failure) = outcome {
            return (Poll::Ready(Err(failure.clone())), None);
        }
        task.leave(&mut running.waker);
        (Poll::Pending, None)
    }

    /// Notes that the future of an operation was dropped. Returns its waker.
    pub(super) fn abandon(&mut self, id: u32) -> Option<Waker> {
        let running = self.running.get_mut(&id)?;
        let waker = running.waker.take();
        running.is_abandoned = true;
        if running.result.is_some() {
            self.running.remove(&id);
        }
        waker
    }

    /// All tasks that wait, for the end of the connection.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let waiting = self.running.values_mut().filter_map(|running| running.waker.take());
        waiting.chain(self.waiters.take_all()).collect()
    }
}
