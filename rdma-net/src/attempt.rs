//! An attempt to connect or to accept, which waits for events step by step.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::cm::{EventKind, IdKey, Rejection};
use rdma::{Error, ErrorKind, Verb};

use super::connection::Core;
use super::failure::{Failure, FailureKind};
use super::mailbox::Mailbox;
use super::protocol::Refuse;
use super::tables::{Route, Tables};

/// An attempt to connect or to accept: receives the events of its id until it is dropped.
pub(super) struct Attempt<'a> {
    tables: &'a Tables,
    id: IdKey,
    mailbox: Arc<Mailbox>,
    /// Whether the id's events go to this attempt.
    is_routed: bool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(tables: &'a Tables, id: IdKey) -> Result<Self, Failure> {
        let mailbox = Arc::new(Mailbox::default());
        tables.set_route(id, Route::Mailbox(Arc::clone(&mailbox)))?;
        Ok(Self { tables, id, mailbox, is_routed: true })
    }

    /// Waits for the next event that `wanted` accepts.
    pub(super) async fn wait<R>(
        &self,
        timeout: Duration,
        mut wanted: impl FnMut(EventKind) -> Option<R>,
    ) -> Result<R, Failure> {
        let deadline = Instant::now() + timeout;
        self.mailbox.begin_step(deadline);
        self.tables.shared.note_deadline(deadline);
        loop {
            let event = poll_fn(|cx| self.mailbox.poll_next(cx)).await?;
            if let Some(found) = wanted(checked(event)?) {
                self.mailbox.end_step();
                return Ok(found);
            }
        }
    }

    /// Gives the events of the id to a connection: those to come, and those that are here.
    pub(super) fn hand_over(mut self, core: &Arc<Core>) -> Result<(), Failure> {
        self.tables.hand_over(self.id, core)?;
        self.is_routed = false;
        self.mailbox.close().into_iter().try_for_each(|event| checked(event).map(drop))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_routed {
            self.tables.remove_route(self.id);
        }
    }
}

/// The event, or the failure that it reports.
fn checked(event: EventKind) -> Result<EventKind, Failure> {
    Err(match event {
        EventKind::AddrError(error) | EventKind::RouteError(error) | EventKind::ConnectError(error) => error.into(),
        EventKind::Unreachable(error) => unreachable(error),
        EventKind::Rejected(rejection) => from_rejection(&rejection),
        EventKind::DeviceRemoval => Error::new(Verb::GetCmEvent, ErrorKind::NoDevice).into(),
        EventKind::Disconnected => Failure::new(FailureKind::PeerGone),
        event => return Ok(event),
    })
}

/// The peer has not answered, whatever the error is.
fn unreachable(error: Error) -> Failure {
    match Failure::from(error) {
        failure if failure.kind() == FailureKind::Local => Failure::with_error(FailureKind::Timeout, error),
        failure => failure,
    }
}

fn from_rejection(rejection: &Rejection) -> Failure {
    match Refuse::from_bytes(&rejection.private_data) {
        Some(refuse) => Failure::refused(&refuse),
        None => Failure::with_error(FailureKind::Refused, rejection.to_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn an_attempt_blames_the_end_that_has_failed() {
        let failed = |event| checked(event).unwrap_err().kind();
        let error = |kind| Error::new(Verb::Connect, kind);
        assert_eq!(failed(EventKind::ConnectError(error(ErrorKind::Disconnected))), FailureKind::PeerGone);
        assert_eq!(failed(EventKind::Unreachable(error(ErrorKind::Disconnected))), FailureKind::PeerGone);
        assert_eq!(failed(EventKind::Unreachable(error(ErrorKind::Unknown))), FailureKind::Timeout);
        assert_eq!(failed(EventKind::ConnectError(error(ErrorKind::NotListening))), FailureKind::Refused);
        assert_eq!(failed(EventKind::AddrError(error(ErrorKind::NoRoute))), FailureKind::Local);
    }

    #[test]
    fn a_task_that_is_polled_late_has_the_whole_time_for_its_next_step() {
        let (node, _driver) =
            crate::Node::new(&rdma::open(&"soft0".parse().unwrap()).unwrap().context, &crate::NodeOptions::new())
                .unwrap();
        let attempt = Attempt::new(node.tables(), IdKey::fresh()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let resolved = |event| matches!(event, EventKind::AddrResolved).then_some(());
        let short = Duration::from_millis(1);
        let mut step = std::pin::pin!(attempt.wait(short, resolved));
        assert!(step.as_mut().poll(&mut cx).is_pending());
        assert!(attempt.mailbox.push(EventKind::AddrResolved).is_none());
        assert!(attempt.mailbox.handle_timeout(Instant::now() + short).is_none());
        assert!(matches!(step.poll(&mut cx), Poll::Ready(Ok(()))));
        let next = std::pin::pin!(attempt.wait(Duration::from_secs(60), resolved));
        assert!(next.poll(&mut cx).is_pending(), "the time of the step before");
    }
}
