//! The turns of tasks that wait for free slots of a send queue that several tasks post to.
//!
//! # Invariants
//!
//! * **T1.** At least `reserved` of the slots from the head on are free: each is for one task that
//!   has been granted it. A slot stays free until it is posted to, which needs the lock that the
//!   turns are under.
//! * **T2.** Turns are granted in order. A task whose turn is not waiting any more was granted a
//!   slot, or its turn came at or after the end (`lost_from`).
//! * **T3.** Whoever leaves a waiting turn behind under the lock, and has made a slot free, taken a
//!   slot or added the turn, then grants turns until there are none or the first must wait for a
//!   completion that will do the same.

#[cfg(all(test, loom))]
mod loom_tests;

use std::collections::VecDeque;
use std::task::{Poll, Waker};

/// The state of the turns of one send queue.
#[derive(Default)]
pub(crate) struct Turns {
    /// The number of slots that were granted and not yet used (T1).
    reserved: u32,
    /// The number of the next turn.
    next: u64,
    /// The turns that wait, in order, each with its task.
    waiting: VecDeque<(u64, Waker)>,
    /// The first turn that waited in vain: the queue takes no more requests.
    lost_from: Option<u64>,
}

/// The state of a task's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Waiting,
    Granted,
    Lost,
}

impl Turns {
    /// The number of free slots that are not to be given away.
    #[inline]
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Whether no task waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Reserves a slot, which is free, for a task that need not wait.
    pub(crate) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Ends a reservation: its slot is used, or is for others again.
    pub(crate) fn release(&mut self) {
        self.reserved -= 1;
    }

    /// Adds a turn after all others.
    pub(crate) fn add(&mut self, task: Waker) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.waiting.push_back((turn, task));
        turn
    }

    fn place(&self, turn: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&turn, |&(turn, _)| turn).ok()
    }

    /// The state of a task's turn (T2).
    pub(crate) fn look(&self, turn: u64) -> Turn {
        match self.place(turn) {
            Some(_) => Turn::Waiting,
            None if self.lost_from.is_some_and(|first| turn >= first) => Turn::Lost,
            None => Turn::Granted,
        }
    }

    /// Leaves the waker of a turn's task, if it waits. Returns a waker to drop outside of the lock.
    pub(crate) fn renew(&mut self, turn: u64, task: Waker) -> Waker {
        match self.place(turn).and_then(|at| self.waiting.get_mut(at)) {
            Some((_, waiting)) => std::mem::replace(waiting, task),
            None => task,
        }
    }

    /// Gives a turn up. Returns a waker to drop outside of the lock.
    pub(crate) fn leave(&mut self, turn: u64) -> Option<Waker> {
        match self.look(turn) {
            Turn::Waiting => self.waiting.remove(self.place(turn)?).map(|(_, task)| task),
            Turn::Granted => {
                self.release();
                None
            }
            Turn::Lost => None,
        }
    }

    /// Grants the first turn if a slot is free for it, or ends it if none will be: `poll` looks
    /// after the given number of slots, and otherwise sees to it that a completion which frees the
    /// next slot grants turns again (T3). Returns the task to wake outside of the lock.
    pub(crate) fn grant(&mut self, poll: impl FnOnce(u32) -> Poll<bool>) -> Option<Waker> {
        let &(first, _) = self.waiting.front()?;
        let is_lost = self.lost_from.is_some();
        let Poll::Ready(is_free) = (if is_lost { Poll::Ready(false) } else { poll(self.reserved) }) else {
            return None;
        };
        let (_, task) = self.waiting.pop_front()?;
        if is_free {
            self.reserve();
        } else {
            // Earlier turns were granted or given up, and later ones end as this does.
            self.lost_from.get_or_insert(first);
        }
        Some(task)
    }
}
