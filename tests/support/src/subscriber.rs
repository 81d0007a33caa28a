//! A log subscriber from a function.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Calls a function at every log event.
#[derive(Debug)]
pub struct OnEvent<F>(pub F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `f` with a log subscriber of this thread that panics at every event; returns the result.
///
/// # Errors
///
/// The panic, if `f` logs an event.
#[allow(clippy::missing_panics_doc, reason = "the panic is caught")]
pub fn where_logging_panics<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    let panics = OnEvent(|_: &Event<'_>| panic!("the subscriber panics, as the test wants it"));
    tracing::subscriber::with_default(panics, || catch_unwind(AssertUnwindSafe(f)))
}
