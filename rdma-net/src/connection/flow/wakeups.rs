//! The tasks that wait for a connection. What is left here under the connection's lock is woken, or
//! dropped, after it.

use std::task::Waker;
use std::time::Instant;

use rdma::{Buffer, Error, ExposedRegion, ExposedSlice, PostError};

use super::Flow;
use crate::panics::Panics;
use crate::receives::log_lost;
use crate::waiters::{Place, Task};

/// Entries for which an empty list keeps memory.
const KEPT: usize = 64;

/// Tasks to wake once the lock is released.
#[derive(Debug, Default)]
pub(in crate::connection) struct Wakeups {
    sender: Option<Waker>,
    receiver: Option<Waker>,
    operator: Option<Waker>,
    /// Tasks that wait for the peer's DONE; all other waiting tasks, when the connection ends.
    pub(super) all: Vec<Waker>,
    /// Wakers that nothing wakes any more, to be dropped.
    pub(super) stale: Vec<Waker>,
    /// Memory that the connection no longer needs, to be dropped.
    pub(super) retired: Vec<Retired>,
}

/// Memory to drop once the lock is released.
#[derive(Debug)]
#[allow(dead_code, reason = "only dropped")]
pub(super) enum Retired {
    Region(ExposedRegion),
    Slice(ExposedSlice),
    Buffer(Buffer),
    /// Of a post that failed, to be logged.
    Refused(PostError<Buffer>),
    /// Of a receive that was to be given to other connections, to be logged.
    Lost(PostError<Buffer>),
}

impl Retired {
    fn retire(self) {
        match &self {
            Self::Refused(refused) => refused.log(),
            Self::Lost(refused) => log_lost(refused),
            Self::Region(_) | Self::Slice(_) | Self::Buffer(_) => {}
        }
    }
}

impl Wakeups {
    /// Leaves a failed post to be logged. Returns its error.
    pub(super) fn refused(&mut self, refused: PostError<Buffer>) -> Error {
        let error = refused.error();
        self.retired.push(Retired::Refused(refused));
        error
    }

    /// Wakes a task that waits for an operation, or for space to begin one.
    pub(super) fn wake_operator(&mut self, waker: Option<Waker>) {
        if waker.is_some() {
            self.all.extend(std::mem::replace(&mut self.operator, waker));
        }
    }

    /// Wakes the tasks, logs, and drops the rest. All of that is other people's code, which may
    /// panic. Returns the empty lists if they have memory, for [`reuse`](Self::reuse).
    pub(in crate::connection) fn wake(mut self, panics: &mut Panics) -> Option<Self> {
        let (sender, receiver, operator) = (self.sender.take(), self.receiver.take(), self.operator.take());
        let mut wake = |waker: Option<Waker>| {
            if let Some(waker) = waker {
                panics.catch(|| waker.wake());
            }
        };
        // One after the other: a chain of iterators takes hundreds of instructions each time.
        wake(sender);
        wake(receiver);
        wake(operator);
        if self.all.capacity() + self.stale.capacity() + self.retired.capacity() == 0 {
            return None;
        }
        self.all.drain(..).for_each(|waker| wake(Some(waker)));
        self.stale.drain(..).for_each(|waker| panics.catch(|| drop(waker)));
        self.retired.drain(..).for_each(|memory| panics.catch(|| memory.retire()));
        Some(self)
    }

    /// Uses the memory of empty lists again, unless it is that of an exceptional number of tasks.
    pub(in crate::connection) fn reuse(&mut self, lists: Self) {
        let Self { all, stale, retired, .. } = lists;
        keep_longer(&mut self.all, all);
        keep_longer(&mut self.stale, stale);
        keep_longer(&mut self.retired, retired);
    }
}

/// Keeps the longer memory of two lists, of which the second is empty.
fn keep_longer<T>(list: &mut Vec<T>, other: Vec<T>) {
    if list.is_empty() && list.capacity() < other.capacity() && other.capacity() <= KEPT {
        *list = other;
    }
}

impl Flow {
    /// Leaves the waker of the task that waits for a message.
    pub(in crate::connection) fn wait_for_message(&mut self, task: &mut Task<'_>) {
        task.leave(&mut self.receiver);
    }

    /// Leaves the waker of a task that waits for the end.
    pub(in crate::connection) fn wait_for_end(&mut self, place: &mut Option<Place>, task: &mut Task<'_>) {
        self.closers.wait(place, task);
    }

    /// Gives a place among the tasks that wait for the end up.
    pub(in crate::connection) fn leave_closers(&mut self, place: &mut Option<Place>) {
        self.wakeups.stale.extend(self.closers.leave(place));
    }

    /// Leaves the waker of a task that waits to send.
    pub(in crate::connection) fn wait_to_send(&mut self, place: &mut Option<Place>, task: &mut Task<'_>) {
        let waited = place.is_some();
        self.senders.wait(place, task);
        self.counts.send_waits += u64::from(!waited && place.is_some());
        if self.senders.is_turn(*place) {
            self.sender_wants_credit = !self.has_room();
            if !self.sender_wants_credit {
                // Notifications may have left it a credit.
                self.post_operations();
            }
        }
    }

    /// Gives a place among the waiting senders up.
    pub(in crate::connection) fn leave_senders(&mut self, place: &mut Option<Place>) {
        // The next one may.
        self.sender_wants_credit = true;
        self.wakeups.stale.extend(self.senders.leave(place));
    }

    /// Leaves the waker of a task that waits to begin a one-sided operation.
    pub(in crate::connection) fn wait_to_operate(&mut self, place: &mut Option<Place>, task: &mut Task<'_>) {
        self.operations.waiters.wait(place, task);
    }

    /// Gives a place among the tasks that wait to begin a one-sided operation up.
    pub(in crate::connection) fn leave_operators(&mut self, place: &mut Option<Place>) {
        self.wakeups.stale.extend(self.operations.waiters.leave(place));
    }

    /// Wakes the first task that waits to send.
    pub(super) fn wake_sender(&mut self) {
        if self.senders.is_empty() {
            return;
        }
        if let Some(waker) = self.senders.take_first(Instant::now()) {
            self.wakeups.all.extend(self.wakeups.sender.replace(waker));
        }
    }

    /// Wakes all tasks that wait to send: none can any more.
    pub(super) fn wake_all_senders(&mut self) {
        self.wakeups.all.extend(self.senders.take_all());
    }

    /// Wakes the first task that waits to begin one-sided operations, if there is space for them.
    pub(in crate::connection) fn wake_operator(&mut self) {
        if !self.operations.waiters.is_empty() && self.operations.has_room(self.operations.wanted) {
            // The next task may want fewer.
            self.operations.wanted = 1;
            self.wakeups.wake_operator(self.operations.waiters.take_first(Instant::now()));
        }
    }

    /// Wakes all tasks.
    pub(super) fn wake_all(&mut self) {
        self.wake_all_senders();
        self.wakeups.all.extend(self.operations.take_wakers());
        self.wakeups.all.extend(self.arrivals.take_wakers());
        self.wakeups.all.extend(self.closers.take_all());
        self.wake_receiver();
    }

    /// Wakes the task that waits for a message.
    pub(super) fn wake_receiver(&mut self) {
        if let Some(waker) = self.receiver.take() {
            self.wakeups.receiver = Some(waker);
        }
    }
}
