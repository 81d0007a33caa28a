//! The future of one request of a send queue.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Error;
use crate::cq::completion;
use crate::ring::{Report, Results, ReturnedMemory, Ticket};
use crate::types::Opcode;

/// A request in flight: the future of its completion.
///
/// Dropping it abandons the request: the device executes it all the same, and its memory comes free
/// with its completion. The call neither waits nor asks the device for anything.
#[must_use = "dropping it abandons the request"]
pub struct InFlight<M> {
    results: &'static Results<Report>,
    /// The sink in which the report arrives; none once the future was ready.
    ticket: Option<Ticket<'static, Report>>,
    collect: fn(&mut ReturnedMemory) -> Option<M>,
}

/// A finished request of a send queue, with its memory.
#[derive(Debug)]
#[must_use = "the status tells whether the request succeeded"]
#[non_exhaustive]
pub struct Finished<M> {
    /// The details of a request that succeeded.
    pub status: Result<Done, Error>,
    /// The memory that was posted; none while the device may still have it: the driver is gone.
    pub local: Option<M>,
}

/// The details of a successful request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The kind of operation.
    pub opcode: Opcode,
    /// The number of bytes that a read or an atomic operation received; 0 for others.
    pub byte_len: usize,
    /// The peer's 8 bytes before an atomic operation.
    pub old_value: Option<u64>,
}

impl<M> InFlight<M> {
    pub(super) fn new(
        results: &'static Results<Report>,
        ticket: Ticket<'static, Report>,
        collect: fn(&mut ReturnedMemory) -> Option<M>,
    ) -> Self {
        Self { results, ticket: Some(ticket), collect }
    }
}

impl<M> Finished<M> {
    /// The memory of a request that succeeded.
    ///
    /// # Errors
    ///
    /// The reason of the failure. The memory is then dropped.
    pub fn into_memory(self) -> Result<M, Error> {
        self.status?;
        self.local.ok_or(Error::DriverGone)
    }

    fn without_report(error: Error) -> Self {
        Self { status: Err(error), local: None }
    }
}

impl<M> Future for InFlight<M> {
    type Output = Finished<M>;

    /// # Panics
    ///
    /// When it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished<M>> {
        assert!(self.ticket.is_some(), "the future was polled after it was ready");
        if self.results.is_forked() {
            return Poll::Ready(Finished::without_report(Error::Forked));
        }
        let results = self.results;
        let Poll::Ready(report) = results.poll(&mut self.ticket, cx) else { return Poll::Pending };
        // Without a report the drop of this future abandons the request.
        let Some(mut report) = report else {
            return Poll::Ready(Finished::without_report(Error::DriverGone));
        };
        let Report { wc, info, memory } = &mut *report;
        let status = completion::status(wc).map_err(Error::Failed).map(|()| Done {
            opcode: completion::opcode(wc, *info),
            byte_len: completion::byte_len(wc, *info),
            old_value: completion::old_value(wc, *info, memory.peek()),
        });
        Poll::Ready(Finished { status, local: (self.collect)(memory) })
    }
}

impl<M> Drop for InFlight<M> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.results.abandon(ticket);
        }
    }
}

impl<M> fmt::Debug for InFlight<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("is_ready", &self.ticket.is_none()).finish_non_exhaustive()
    }
}
