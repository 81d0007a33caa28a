//! Waits for completions and for file descriptors.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma::{Completion, CompletionChannel, CompletionQueue, Context, Poller};

use crate::Failure;
use rdma_collectives::bootstrap::Watch;

/// Interval of the checks whether the other rank still lives.
const LOOK: Duration = Duration::from_millis(200);

/// A completion queue whose waits end at a deadline, and early if a rank is lost.
#[derive(Debug)]
pub(crate) struct Completions {
    cq: CompletionQueue,
    channel: CompletionChannel,
    poller: Poller,
    sleeps: bool,
    watch: Watch,
    timeout: Duration,
}

impl Completions {
    /// Creates a queue with space for `depth` completions. With `sleeps`, a wait sleeps at once and
    /// does not poll first.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn new(
        context: &Context,
        depth: u32,
        sleeps: bool,
        watch: Watch,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let channel = context.create_completion_channel()?;
        let cq = context.cq_builder(depth).channel(&channel).build()?;
        Ok(Self { poller: cq.poller(), cq, channel, sleeps, watch, timeout })
    }

    /// The completion queue.
    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Hands the next completion to `take`, if there is one now.
    ///
    /// # Errors
    /// Errors of polling, and of `take`.
    pub(crate) fn poll<T>(
        &mut self,
        take: impl FnOnce(Completion<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        self.poller.poll()?.map(take).transpose()
    }

    /// Waits for the next completion and hands it to `take`; returns `None` if none comes in time.
    ///
    /// # Errors
    /// Errors of polling and of `take`; the loss of a rank.
    pub(crate) fn wait<T>(
        &mut self,
        take: impl FnOnce(Completion<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        if let Some(completion) = self.poller.poll()? {
            return take(completion).map(Some);
        }
        let deadline = Instant::now() + self.timeout;
        loop {
            let look = LOOK.min(deadline.saturating_duration_since(Instant::now()));
            if self.sleeps {
                self.cq.request_notify(false)?;
                // A completion that came before the CQ was armed may raise no event.
                if let Some(completion) = self.poller.poll()? {
                    return take(completion).map(Some);
                }
                self.channel.next_event(Some(look))?;
                if let Some(completion) = self.poller.poll()? {
                    return take(completion).map(Some);
                }
            } else if let Some(completion) = self.poller.wait(Some(look))? {
                return take(completion).map(Some);
            }
            self.watch.check()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }
}

/// Sleeps until one of the descriptors is readable or has an error; returns `false` at the
/// deadline. May also return early.
///
/// # Errors
/// Errors of poll(2).
pub(crate) fn readable(descriptors: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<bool, Failure> {
    let timeout = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
        None => PollTimeout::NONE,
        Some(left) if left.is_zero() => PollTimeout::ZERO,
        // Rounds up: with less than 1 ms left, a rounded-down wait would return at once, again and
        // again.
        Some(left) => PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX),
    };
    let mut all: Vec<PollFd<'_>> = descriptors.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut all, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(true),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}
