//! Waits for a completion: spins, then yields ([`Backoff`](super::Backoff)), then sleeps on the
//! completion channel.

use std::hint;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::backoff::{Pause, Pauses};
use super::channel::ChannelInner;
use super::completion::Completion;
use super::held::Found;
use super::poll::Poller;
use super::queue::CqInner;
use crate::error::{Result, Verb};
use crate::fork;
use crate::wait::{self, Deadline};

/// The reason why [`Poller::wait_or_readable`] returned.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wakeup<'a> {
    /// A completion arrived.
    Completion(Completion<'a>),
    /// No completion is there, and the other descriptor is readable.
    Readable,
    /// The timeout passed without either.
    TimedOut,
}

impl Poller {
    /// Waits for the next completion; none after `timeout`. Without a timeout, the call waits for
    /// ever.
    ///
    /// The poller spins for some microseconds, then yields, then sleeps on the queue's channel, or
    /// in short naps if the queue has none, or if an `aio::Driver` sleeps there: the default of
    /// [`Backoff`](crate::Backoff). The channel should serve no other queues, and no other code
    /// should take its events, because this call takes them.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll), and any error of waiting on the channel.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let cq = context.cq_builder(16).events().build()?;
    /// let mut poller = cq.poller();
    /// assert!(poller.wait(Some(Duration::from_millis(1)))?.is_none(), "nothing was posted");
    /// # Ok(()) }
    /// ```
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Completion<'_>>> {
        let found = self.find(None, timeout)?;
        Ok(found.map(|found| self.completion(found)))
    }

    /// Waits for a completion, or until another descriptor is readable, for example a timer, an
    /// event channel, or a connection whose disconnect must be noticed.
    ///
    /// Completions take precedence: the descriptor is checked only when there are none.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    ///
    /// # Examples
    ///
    /// A service that runs until its peer disconnects:
    ///
    /// ```no_run
    /// # use rdma::cm::blocking::Connection;
    /// # fn f(poller: &mut rdma::Poller, connection: &Connection) -> rdma::Result<()> {
    /// use rdma::Wakeup;
    /// use rdma::cm::EventKind;
    ///
    /// loop {
    ///     match poller.wait_or_readable(connection, None)? {
    ///         Wakeup::Completion(completion) => println!("{completion:?}"),
    ///         _ => match connection.try_next_event()? {
    ///             Some(event) if matches!(event.kind, EventKind::Disconnected) => return Ok(()),
    ///             _ => {}
    ///         },
    ///     }
    /// }
    /// # }
    /// ```
    pub fn wait_or_readable(&mut self, other: impl AsFd, timeout: Option<Duration>) -> Result<Wakeup<'_>> {
        let other = other.as_fd();
        match self.find(Some(other), timeout)? {
            Some(found) => Ok(Wakeup::Completion(self.completion(found))),
            None if is_readable(other)? => Ok(Wakeup::Readable),
            None => Ok(Wakeup::TimedOut),
        }
    }

    /// Sets how [`wait`](Self::wait) spins and yields before it sleeps.
    #[cfg(test)]
    pub(crate) fn set_backoff(&mut self, backoff: super::Backoff) {
        self.backoff = backoff;
    }

    /// Looks for a completion until the timeout, or until `other` is readable.
    fn find(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<Option<Found>> {
        let mut pauses = Pauses::default();
        // A wait that ends while it spins reads no clock.
        let mut start = None;
        let mut begin = || *start.get_or_insert_with(|| (Instant::now(), Deadline::after(timeout)));
        loop {
            if let Some(found) = self.advance()? {
                return Ok(Some(found));
            }
            let pause = self.backoff.pause(&mut pauses, || begin().0.elapsed());
            if pause == Pause::Spin {
                hint::spin_loop();
                continue;
            }
            let (_, deadline) = begin();
            if deadline.is_over() {
                return Ok(None);
            }
            let Pause::Nap(time) = pause else {
                thread::yield_now();
                continue;
            };
            let cq = Arc::clone(&self.cq);
            if let Some(channel) = cq.free_channel() {
                return self.sleep(&cq, channel, other, deadline);
            }
            if is_set(other)? {
                return Ok(None);
            }
            wait::any_readable(Verb::GetCqEvent, [other], deadline.sooner(time))?;
        }
    }

    fn sleep(
        &mut self,
        cq: &CqInner,
        channel: &ChannelInner,
        other: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<Option<Found>> {
        let asleep = cq.sharing.fall_asleep();
        // From here on the queue is not quiet: each poll looks at the backlog.
        self.quiet_in = fork::NO_EPOCH;
        let mut slept = false;
        loop {
            let bell = cq.sharing.bell()?;
            cq.arm(false)?;
            // Poll once more: a completion that arrived before the queue was armed may raise no
            // event, and one that was added to the backlog before this poller counted as asleep
            // rings no bell.
            if let Some(found) = self.advance()? {
                if slept {
                    asleep.wake_another();
                }
                return Ok(Some(found));
            }
            if deadline.is_over() || slept && is_set(other)? {
                return Ok(None);
            }
            if bell.is_none() && !cq.sharing.crowd.is_alone() {
                continue;
            }
            self.batch.tally.slept();
            let fds = [Some(channel.fd()), bell.map(AsFd::as_fd), other];
            wait::any_readable(Verb::GetCqEvent, fds, deadline)?;
            if let Some(bell) = bell {
                bell.take();
            }
            // Take this event and any left over from earlier; the queue is armed again before the
            // next sleep.
            while channel.try_next_event()?.is_some() {}
            slept = true;
        }
    }
}

fn is_set(other: Option<BorrowedFd<'_>>) -> Result<bool> {
    other.map_or(Ok(false), is_readable)
}

fn is_readable(fd: BorrowedFd<'_>) -> Result<bool> {
    wait::is_readable(Verb::GetCqEvent, fd)
}
