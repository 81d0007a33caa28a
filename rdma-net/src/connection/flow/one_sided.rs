//! One-sided operations under the connection's lock.

use std::task::Poll;
use std::time::Instant;

use rdma::Buffer;

use super::Flow;
use super::wakeups::Retired;
use crate::connection::operations::{Finished, Leftover, Request};
use crate::failure::{Failure, FailureKind};
use crate::link::READ_BIT;
use crate::waiters::{Place, Task};

impl Flow {
    /// The reason why no one-sided operation can begin any more.
    pub(in crate::connection) fn operation_failure(&self) -> Option<Failure> {
        self.outcome.clone().or_else(|| self.protocol.peer_code().map(Failure::closed))
    }

    /// Waits for slots for `count` operations, behind the tasks that wait already.
    pub(in crate::connection) fn poll_slots(
        &mut self,
        count: u32,
        place: &mut Option<Place>,
        task: &mut Task<'_>,
    ) -> Poll<Result<(), Failure>> {
        if let Some(failure) = self.operation_failure() {
            self.leave_operators(place);
            return Poll::Ready(Err(failure));
        }
        let is_turn = self.operations.waiters.is_turn(*place);
        if is_turn && self.operations.has_room(count) {
            self.leave_operators(place);
            self.operations.wanted = 1;
            return Poll::Ready(Ok(()));
        }
        if is_turn {
            self.operations.wanted = count;
        }
        self.wait_to_operate(place, task);
        Poll::Pending
    }

    /// Gives up a place among the tasks that wait for slots. The next one is woken.
    pub(in crate::connection) fn give_up_slots(&mut self, place: &mut Option<Place>) {
        self.leave_operators(place);
        self.operations.wanted = 1;
        self.wake_operator();
    }

    /// Begins operations, for which there are slots, with one doorbell. Returns the number of the
    /// first, or 0.
    pub(in crate::connection) fn operate(
        &mut self,
        requests: impl IntoIterator<Item = (Request, Option<Buffer>)>,
    ) -> Result<u32, Failure> {
        if self.link.is_none() {
            let unused = requests.into_iter().filter_map(|(_, buffer)| buffer).map(Retired::Buffer);
            self.wakeups.retired.extend(unused);
            return Err(Failure::new(FailureKind::Closed));
        }
        let mut begun: Option<(u32, u32)> = None;
        for (request, buffer) in requests {
            let id = self.operations.begin(request, buffer, begun);
            begun = Some(begun.map_or((id, id), |(leader, _)| (leader, id)));
        }
        self.post_operations();
        self.wake_operator();
        Ok(begun.map_or(0, |(leader, _)| leader))
    }

    /// Posts the operations that are queued, as far as there are credits for notifications beside
    /// the permits. With messages that wait for credits, notifications share them: a program may
    /// post notifications without end.
    pub(super) fn post_operations(&mut self) {
        if !self.operations.has_queued() {
            return;
        }
        let credits = self.protocol.notification_room().saturating_sub(self.reserved);
        let share = if self.wants_credit() { self.protocol.notification_share(credits) } else { credits };
        let Some(link) = self.link.as_mut() else { return };
        let posted = self.operations.post(link, self.token, share);
        self.counts.operations += u64::from(posted.operations);
        for _ in 0..posted.notifications {
            self.protocol.notify();
        }
        for (id, memory, error) in posted.refused {
            let leftover = self.operations.fail(id, memory, error);
            self.note(leftover);
        }
        let Some(failed) = posted.failed else { return };
        let error = self.wakeups.refused(failed);
        if posted.lost > 0 {
            // The peer will never see a notification that has used a credit.
            self.fail(error.into());
        }
    }

    /// Whether a message waits for a credit beside those of permits, or soon may.
    fn wants_credit(&self) -> bool {
        let has_sender = || self.sender_wants_credit && self.senders.has_turn();
        self.outgoing.is_some() || self.has_answers() || self.protocol.wants_end() || has_sender()
    }

    /// Leaves tasks and memory to be woken and dropped once the lock is released.
    fn note(&mut self, leftover: Leftover) {
        let Leftover { waker, stale, memory } = leftover;
        self.wakeups.wake_operator(waker);
        self.wakeups.stale.extend(stale);
        self.wakeups.retired.extend(memory.map(Retired::Buffer));
    }

    /// Takes the result of a one-sided operation.
    pub(in crate::connection) fn operated(&mut self, id: u32, buffer: Buffer, old_value: Option<u64>, now: Instant) {
        if id & READ_BIT != 0 {
            return self.offer_read(id, buffer, now);
        }
        let leftover = self.operations.finish(id, buffer, old_value);
        self.note(leftover);
        self.wake_operator();
    }

    /// Waits until the operations that have begun with this one have results.
    pub(in crate::connection) fn poll_operations(
        &mut self,
        leader: u32,
        task: &mut Task<'_>,
    ) -> Poll<Result<(), Failure>> {
        self.operations.poll(leader, self.outcome.as_ref(), task)
    }

    /// Takes the result of a one-sided operation that has one, and replaces `id` by the number of
    /// the next one, or 0.
    pub(in crate::connection) fn take_result(&mut self, id: &mut u32) -> Result<Finished, Failure> {
        let (result, stale, next) = self.operations.take(*id);
        *id = next;
        self.wakeups.stale.extend(stale);
        result.unwrap_or_else(|| Err(Failure::new(FailureKind::Local)))
    }

    /// Notes that the future of one-sided operations was dropped: of this one, and of those that
    /// have begun with it after it.
    pub(in crate::connection) fn abandon_operations(&mut self, mut id: u32) {
        while id != 0 {
            let (leftover, next) = self.operations.abandon(id);
            self.note(leftover);
            id = next;
        }
        // A notification that was queued may have kept others back.
        self.post_operations();
        self.wake_operator();
    }

    /// Takes the memory of the operations that were not posted, at the end of the connection.
    pub(super) fn end_operations(&mut self) {
        self.wakeups.retired.extend(self.operations.take_queued().into_iter().map(Retired::Buffer));
    }
}
