//! The notifications of the peer that have arrived, and the tasks that wait for them.
//!
//! A notification takes a receive, which is posted again at once, and leaves a number of 32 bits.
//! Numbers wait in runs: in the order of their arrival, equal ones that follow each other as one.
//! While as many runs wait as the node allows, no receive is posted again, so the peer has to wait.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Instant;

use rdma::Buffer;

use super::Flow;
use crate::failure::Failure;
use crate::waiters::{Place, Task, Waiters};

/// The notifications of a connection.
#[derive(Debug)]
pub(in crate::connection) struct Arrivals {
    /// Numbers and their counts.
    runs: VecDeque<(u32, u64)>,
    /// Runs that may wait before receives are no longer replaced.
    limit: usize,
    /// Tasks that wait for the next notification.
    waiters: Waiters,
    /// Tasks that count notifications, in the order in which they came. Those of a number get it
    /// before other tasks do.
    counters: Vec<Counter>,
    next_counter: u64,
}

/// A task that waits for some notifications with the same number.
#[derive(Debug)]
struct Counter {
    key: u64,
    number: u32,
    /// Notifications that have come, and that are to come.
    taken: u64,
    left: u64,
    waker: Option<Waker>,
}

impl Arrivals {
    pub(in crate::connection) fn new(limit: u32) -> Self {
        Self {
            runs: VecDeque::new(),
            limit: limit as usize,
            waiters: Waiters::default(),
            counters: Vec::new(),
            next_counter: 0,
        }
    }

    /// Whether so many wait that the peer has to.
    pub(super) fn is_full(&self) -> bool {
        self.limit > 0 && self.runs.len() >= self.limit
    }

    /// The notifications that wait.
    fn len(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// Gives notifications to the tasks that count them, and adds the tasks that have all to
    /// `wakers`. Returns how many are left.
    fn give(&mut self, number: u32, mut count: u64, wakers: &mut Vec<Waker>) -> u64 {
        for counter in self.counters.iter_mut().filter(|counter| counter.number == number) {
            let given = counter.left.min(count);
            counter.left -= given;
            counter.taken += given;
            count -= given;
            if given > 0 && counter.left == 0 {
                wakers.extend(counter.waker.take());
            }
        }
        count
    }

    /// Adds a notification behind the others, and the tasks to wake to `wakers`.
    fn push(&mut self, number: u32, wakers: &mut Vec<Waker>) {
        if self.give(number, 1, wakers) > 0 {
            match self.runs.back_mut() {
                Some((last, count)) if *last == number => *count += 1,
                _ => self.runs.push_back((number, 1)),
            }
        }
    }

    /// Puts notifications back that a task has counted and not used, before the others. Adds
    /// the tasks to wake to `wakers`.
    fn put_back(&mut self, number: u32, count: u64, wakers: &mut Vec<Waker>) {
        let left = self.give(number, count, wakers);
        match self.runs.front_mut() {
            _ if left == 0 => {}
            Some((first, count)) if *first == number => *count += left,
            _ => self.runs.push_front((number, left)),
        }
    }

    /// Takes the notification that has waited longest.
    fn pop(&mut self) -> Option<u32> {
        let (number, count) = self.runs.front_mut()?;
        let number = *number;
        *count -= 1;
        if *count == 0 {
            self.runs.pop_front();
        }
        Some(number)
    }

    /// Takes up to `most` notifications with a number. Returns how many.
    fn take(&mut self, number: u32, most: u64) -> u64 {
        let mut taken = 0;
        for (_, count) in self.runs.iter_mut().filter(|(other, _)| *other == number) {
            let part = (*count).min(most - taken);
            *count -= part;
            taken += part;
        }
        self.runs.retain(|(_, count)| *count > 0);
        taken
    }

    /// All tasks, for the end of the connection.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let counting = self.counters.iter_mut().filter_map(|counter| counter.waker.take());
        counting.chain(self.waiters.take_all()).collect()
    }

    /// The time at which [`pass_by_notified`](Flow::pass_by_notified) is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiters.deadline()
    }
}

impl Flow {
    /// Takes a notification of the peer, and the receive that it has used.
    pub(in crate::connection) fn notified(&mut self, buffer: Buffer, number: u32, now: Instant) {
        if let Some(stake) = &mut self.stake {
            stake.taken();
        }
        if self.outcome.is_some() {
            return self.give_back(buffer);
        }
        if let Err(violation) = self.protocol.handle_notification(now) {
            self.fail(Failure::violation(violation));
            return self.give_back(buffer);
        }
        self.owed += 1;
        self.buffers.spares.push(buffer);
        // A side that closes holds the peer up no longer, so it keeps no more than the limit.
        let is_too_many = self.is_closing() && self.arrivals.is_full();
        let wakers = &mut self.wakeups.all;
        if is_too_many {
            self.arrivals.give(number, 1, wakers);
        } else {
            self.arrivals.push(number, wakers);
        }
        self.wake_notified();
        self.replace_receives();
        self.pump(now);
    }

    /// The number of notifications that wait.
    pub(in crate::connection) fn notifications(&self) -> u64 {
        self.arrivals.len()
    }

    /// Waits for the next notification.
    pub(in crate::connection) fn poll_notification(
        &mut self,
        place: &mut Option<Place>,
        now: Instant,
        task: &mut Task<'_>,
    ) -> Poll<Result<u32, Failure>> {
        if self.arrivals.waiters.is_turn(*place) {
            if let Some(number) = self.arrivals.pop() {
                self.give_up_notification(place);
                self.taken(now);
                return Poll::Ready(Ok(number));
            }
        }
        if let Some(failure) = self.operation_failure() {
            self.leave_notified(place);
            return Poll::Ready(Err(failure));
        }
        self.arrivals.waiters.wait(place, task);
        Poll::Pending
    }

    fn leave_notified(&mut self, place: &mut Option<Place>) {
        self.wakeups.stale.extend(self.arrivals.waiters.leave(place));
    }

    /// Gives up a place among the tasks that wait for the next notification. The next one is woken.
    pub(in crate::connection) fn give_up_notification(&mut self, place: &mut Option<Place>) {
        self.leave_notified(place);
        self.wake_notified();
    }

    /// Wakes the first task that waits for the next notification, if there is one.
    fn wake_notified(&mut self) {
        if !self.arrivals.runs.is_empty() {
            self.wakeups.all.extend(self.arrivals.waiters.take_first(Instant::now()));
        }
    }

    /// Passes by a task that was woken and not polled in time.
    pub(super) fn pass_by_notified(&mut self, now: Instant) {
        self.arrivals.waiters.pass_by(now);
        self.wake_notified();
    }

    /// Posts the receives that notifications kept back which a task has taken.
    fn taken(&mut self, now: Instant) {
        if self.owed > 0 {
            self.replace_receives();
            self.pump(now);
        }
    }

    /// Begins to count notifications with a number. Returns the key of the task.
    pub(in crate::connection) fn begin_count(&mut self, number: u32, count: u64, now: Instant) -> u64 {
        let key = self.arrivals.next_counter;
        self.arrivals.next_counter += 1;
        // Tasks that count the same number wait for all that come, so none of it is here.
        let taken = self.arrivals.take(number, count);
        let counter = Counter { key, number, taken, left: count - taken, waker: None };
        self.arrivals.counters.push(counter);
        self.taken(now);
        key
    }

    /// Waits until all notifications have come.
    pub(in crate::connection) fn poll_count(&mut self, key: u64, task: &mut Task<'_>) -> Poll<Result<(), Failure>> {
        let failure = self.operation_failure();
        let Some(at) = self.arrivals.counters.iter().position(|counter| counter.key == key) else {
            return Poll::Pending;
        };
        let counter = &mut self.arrivals.counters[at];
        if counter.left == 0 {
            let counter = self.arrivals.counters.remove(at);
            self.wakeups.stale.extend(counter.waker);
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = failure {
            return Poll::Ready(Err(failure));
        }
        task.leave(&mut counter.waker);
        Poll::Pending
    }

    /// Gives up a count: others may have the notifications that have come.
    pub(in crate::connection) fn give_up_count(&mut self, key: u64) {
        let Some(at) = self.arrivals.counters.iter().position(|counter| counter.key == key) else { return };
        let counter = self.arrivals.counters.remove(at);
        self.wakeups.stale.extend(counter.waker);
        self.arrivals.put_back(counter.number, counter.taken, &mut self.wakeups.all);
        self.wake_notified();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_notifications_are_counted_and_others_wait_in_order() {
        let mut arrivals = Arrivals::new(3);
        let mut wakers = Vec::new();
        for number in [7, 7, 7, 5, 7] {
            arrivals.push(number, &mut wakers);
        }
        assert!(wakers.is_empty());
        assert!(arrivals.is_full() && arrivals.len() == 5);
        assert_eq!(arrivals.take(7, 2), 2);
        assert!(arrivals.is_full(), "no run is used up");
        assert_eq!((arrivals.pop(), arrivals.pop()), (Some(7), Some(5)));
        assert_eq!((arrivals.take(5, 1), arrivals.take(7, 9)), (0, 1));
        assert_eq!((arrivals.pop(), arrivals.is_full(), arrivals.len()), (None, false, 0));
        assert!(!Arrivals::new(0).is_full());
    }

    #[test]
    fn a_count_that_is_given_up_leaves_its_notifications_to_others() {
        let mut arrivals = Arrivals::new(3);
        let mut wakers = Vec::new();
        arrivals.push(9, &mut wakers);
        let counter = |key, left| Counter { key, number: 7, taken: 0, left, waker: None };
        arrivals.counters.extend([counter(0, 3), counter(1, 2)]);
        (0..4).for_each(|_| arrivals.push(7, &mut wakers));
        assert_eq!(arrivals.counters.iter().map(|counter| counter.left).collect::<Vec<_>>(), [0, 1]);
        let given_up = arrivals.counters.remove(0);
        arrivals.put_back(given_up.number, given_up.taken, &mut wakers);
        assert!(wakers.is_empty());
        assert_eq!(arrivals.counters[0].left, 0);
        assert_eq!(arrivals.runs, [(7, 2), (9, 1)]);
    }
}
