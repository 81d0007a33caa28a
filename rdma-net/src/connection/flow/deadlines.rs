//! What a connection does after a time.

use std::time::Instant;

use super::{Ending, Flow};
use crate::failure::{Failure, FailureKind};
use crate::protocol::Silent;

impl Flow {
    /// The time at which [`handle_timeout`](Self::handle_timeout) is due.
    fn deadline(&self) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        // Notifications may wait behind the first sender.
        let is_waited_for = self.operations.has_queued();
        let senders = if is_waited_for { self.senders.first_deadline() } else { self.senders.deadline() };
        let turns = [senders, self.operations.waiters.deadline(), self.arrivals.deadline()];
        let times = [self.protocol.deadline(), self.close_by, self.message_by];
        times.into_iter().chain(turns).flatten().min()
    }

    /// The deadline, if it is sooner than the one that the driver knows.
    pub(in crate::connection) fn take_sooner_deadline(&mut self) -> Option<Instant> {
        let deadline = self.deadline()?;
        if self.noted.is_some_and(|noted| noted <= deadline) {
            return None;
        }
        self.noted = Some(deadline);
        Some(deadline)
    }

    /// Does what is due, and forgets the deadline that the driver knows.
    ///
    /// # Errors
    ///
    /// The peer is silent, and the caller must fail the connection.
    pub(in crate::connection) fn handle_timeout(&mut self, now: Instant) -> Result<(), Silent> {
        self.noted = None;
        if self.outcome.is_some() || self.deadline().is_none_or(|at| at > now) {
            return Ok(());
        }
        let is_due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        self.protocol.handle_timeout(now)?;
        if is_due(self.message_by) || is_due(self.close_by) && self.protocol.has_aborted() {
            self.fail(Failure::new(FailureKind::Timeout));
        }
        if is_due(self.close_by) {
            let code = if let Ending::Connection(code) = self.ending { code } else { 0 };
            self.ending = Ending::Connection(code);
            self.protocol.abort(code);
            self.close_by = Some(now + self.linger);
        }
        self.senders.pass_by(now);
        self.operations.waiters.pass_by(now);
        self.operations.wanted = 1;
        self.pass_by_notified(now);
        self.wake_operator();
        self.pump(now);
        Ok(())
    }
}
