//! Ends a job from any thread.

use std::sync::Arc;

use super::frame::{Frame, Loss};
use super::router::Router;
use super::watch::Watch;
use crate::Error;
use crate::cause::Cause;
use crate::process::Maker;

/// Ends the job of a group, from any thread, for a reason that every rank gets: what waits for
/// another rank fails within milliseconds, at this rank and at the others.
#[derive(Clone, Debug)]
pub struct Aborter {
    pub(super) maker: Maker,
    pub(super) router: Arc<Router>,
    pub(super) watch: Watch,
    /// This rank's name in messages.
    pub(super) name: String,
}

impl Aborter {
    /// Ends the job. Only the first reason counts; nothing happens once the job has failed, nor in
    /// a forked child.
    pub fn abort(&self, reason: &str) {
        self.abort_for(reason, Cause::Aborted);
    }

    /// Ends the job as [`abort`](Self::abort) does, for a cause.
    pub(crate) fn abort_for(&self, reason: &str, cause: Cause) {
        if self.maker.check().is_err() {
            return;
        }
        let reason = format!("has aborted the job: {reason}");
        let error = Error::new(format!("{} {reason}", self.name)).with_cause(cause.clone());
        let news = Frame::Lost(self.router.rank(), Loss::new(reason, cause));
        if self.router.tell(&news, None, || self.watch.fail(error)) {
            // Ends this rank's waits for values.
            self.router.deliver_to_all(self.router.rank(), &news);
        }
    }
}
