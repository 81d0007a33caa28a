//! The reactor: runs turns, and sleeps between them.
//!
//! It obeys these rules when it sleeps. It arms the queue and then lets a turn fetch again, because
//! a completion from before may raise no event. It does not arm an armed queue. It takes events
//! until none is left, because executors may watch the descriptor edge-triggered.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::{DriverOptions, Readiness};
use crate::context::Context as Device;
use crate::cq::{Backoff, CompletionChannel, CompletionQueue, Pause, Pauses};
use crate::error::{Error, Result, Verb};
use crate::os::{Epoll, EventFd, TimerFd};
use crate::wait::{self, Deadline};

/// What a [`Reactor`] does in its turns.
pub trait Handler {
    /// Delivers about `budget` completions, and does all else that is due; never sleeps. Returns
    /// the number of completions.
    ///
    /// # Errors
    ///
    /// Errors that end the reactor.
    fn turn(&mut self, budget: usize) -> Result<usize>;

    /// Whether nothing is left to do, and nothing will come.
    fn is_over(&self) -> bool;

    /// The time of the next work that no descriptor announces.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// A sleep has ended, by events of the completion queue or by something else.
    fn woken(&mut self, by_completions: bool) {
        let _ = by_completions;
    }
}

/// A completion queue with all that a thread or a task needs to serve it and to sleep when it is
/// empty.
///
/// A [`Driver`](super::Driver) is a reactor that delivers completions to futures. A library that
/// finds the receiver of a completion by its token, for example in a table of connections, puts
/// this into a [`Handler`] instead. The descriptor ([`AsFd`]) is readable while events of the queue
/// wait, while a [source](Self::watch) is readable, at the handler's next deadline, and after
/// [`Bell::ring`].
///
/// While the reactor lives, the events of its queue are its own: [`Poller::wait`](crate::Poller)
/// does not take them.
///
/// # Examples
///
/// ```
/// use rdma::Poller;
/// use rdma::aio::{DriverOptions, Handler, Reactor};
///
/// /// Requests that are counted.
/// struct Requests {
///     poller: Poller,
///     open: usize,
/// }
///
/// impl Handler for Requests {
///     fn turn(&mut self, budget: usize) -> rdma::Result<usize> {
///         let mut count = 0;
///         while count < budget {
///             let Some(completion) = self.poller.poll()? else { break };
///             println!("request {} has ended: {:?}", completion.token(), completion.status());
///             (count, self.open) = (count + 1, self.open - 1);
///         }
///         Ok(count)
///     }
///
///     fn is_over(&self) -> bool {
///         self.open == 0
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let mut reactor = Reactor::new(&context, &DriverOptions::new())?;
/// // Queue pairs of `reactor.completion_queue()` post requests here.
/// let mut requests = Requests { poller: reactor.completion_queue().poller(), open: 0 };
/// while !requests.is_over() {
///     reactor.wait(&mut requests, None)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Reactor {
    /// Watches the channel, the timer, the bell and the sources.
    epoll: Epoll,
    timer: Timer,
    bell: Bell,
    cq: CompletionQueue,
    channel: CompletionChannel,
    is_armed: bool,
    /// The turns before [`wait`](Self::wait) sleeps.
    backoff: Backoff,
    budget: usize,
    /// The turns of [`poll_run`](Self::poll_run) since the last with a completion.
    idle: Pauses,
}

impl Reactor {
    /// Creates a completion queue and its reactor.
    ///
    /// # Errors
    ///
    /// `NoCompletionVector`; errors of creating the completion queue and its channel; too many open
    /// files.
    pub fn new(device: &Device, options: &DriverOptions) -> Result<Self> {
        let channel = device.create_completion_channel()?;
        let cq = device.cq_builder(options.depth).channel(&channel);
        let cq = cq.completion_vector(options.completion_vector).build()?;
        let (epoll, timer, bell) = (wait::epoll()?, Timer::new()?, Bell::new()?);
        for fd in [channel.inner.fd(), timer.fd.as_fd(), bell.0.as_fd()] {
            wait::watch(&epoll, fd)?;
        }
        // An event that a poller took would leave the reactor asleep, and the queue unarmed.
        cq.inner.set_driven(true);
        let (backoff, budget, idle) = (options.backoff(), options.budget, Pauses::default());
        Ok(Self { epoll, timer, bell, cq, channel, is_armed: false, backoff, budget, idle })
    }

    /// The completion queue: build queue pairs with it.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Lets other threads end the reactor's sleep.
    #[must_use]
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Ends sleeps also while `source` is readable, until it is closed. [`Handler::turn`] reads it.
    ///
    /// # Errors
    ///
    /// Errors of epoll, for example that it cannot watch the descriptor.
    pub fn watch(&self, source: impl AsFd) -> Result<()> {
        // A child has the epoll of its parent.
        self.check()?;
        wait::watch(&self.epoll, source.as_fd())
    }

    /// Prepares a sleep of the program: takes the events that have made the descriptor readable,
    /// arms the completion queue, and does a turn. Returns whether the program may sleep until the
    /// descriptor is readable; otherwise there may be more work, so arm again. It may watch the
    /// descriptor by level or by edge.
    ///
    /// # Errors
    ///
    /// Any error that the provider or the handler reports.
    pub fn arm(&mut self, handler: &mut impl Handler) -> Result<bool> {
        self.check()?;
        self.take_events(handler)?;
        // Watched by edge, the descriptor does not tell again of what the turn has left.
        Ok(self.prepare(handler)? == 0 && !wait::is_readable(Verb::WatchDescriptor, self.as_fd())?)
    }

    /// Does turns, and sleeps once if they deliver nothing and the [`Strategy`](super::Strategy)
    /// says so. Returns the number of completions: 0 at the timeout, after a sleep that something
    /// else has ended, or when the work is over.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm), and errors of waiting.
    pub fn wait(&mut self, handler: &mut impl Handler, timeout: Option<Duration>) -> Result<usize> {
        self.check()?;
        let deadline = Deadline::after(timeout);
        let (mut pauses, mut start) = (Pauses::default(), None);
        loop {
            let count = handler.turn(self.budget)?;
            if count > 0 || handler.is_over() {
                return Ok(count);
            }
            match self.backoff.pause(&mut pauses, || start.get_or_insert_with(Instant::now).elapsed()) {
                Pause::Nap(_) => return self.sleep(handler, deadline),
                pause => pause.take(),
            }
            if deadline.is_over() {
                return Ok(0);
            }
        }
    }

    /// Sleeps until the descriptor is readable, and does a turn.
    pub(super) fn sleep(&mut self, handler: &mut impl Handler, deadline: Deadline) -> Result<usize> {
        let count = self.prepare(handler)?;
        if count > 0 || handler.is_over() || deadline.is_over() {
            return Ok(count);
        }
        wait::readable(Verb::WatchDescriptor, self.as_fd(), deadline)?;
        self.take_events(handler)?;
        handler.turn(self.budget)
    }

    /// One step of a task: turns, after which the executor may run other tasks. Ready when the work
    /// is over. `readiness` waits for the reactor's descriptor.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm), and errors of the executor.
    pub fn poll_run(
        &mut self,
        cx: &mut Context<'_>,
        handler: &mut impl Handler,
        readiness: &mut impl Readiness,
    ) -> Poll<Result<()>> {
        self.check()?;
        loop {
            let count = handler.turn(self.budget)?;
            if handler.is_over() {
                return Poll::Ready(Ok(()));
            }
            if count > 0 {
                self.idle = Pauses::default();
            }
            // The executor has other tasks to run, so the thread does not yield.
            if count > 0 || self.backoff.pause(&mut self.idle, || Duration::MAX) == Pause::Spin {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.request_event()? {
                continue;
            }
            self.timer.set(handler.next_deadline());
            let readable = ready!(readiness.poll_readable(cx));
            readable.map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
            self.take_events(handler)?;
        }
    }

    /// Fails in a forked child, whose descriptors are those of the parent.
    fn check(&self) -> Result<()> {
        self.cq.inner.context.check(Verb::PollCq)
    }

    /// Arms the queue and the timer, and looks for work once more.
    fn prepare(&mut self, handler: &mut impl Handler) -> Result<usize> {
        self.request_event()?;
        let count = handler.turn(self.budget)?;
        self.timer.set(handler.next_deadline());
        Ok(count)
    }

    /// Arms the queue unless it is armed; returns whether it did.
    fn request_event(&mut self) -> Result<bool> {
        if self.is_armed {
            return Ok(false);
        }
        self.cq.inner.arm(false)?;
        self.is_armed = true;
        Ok(true)
    }

    /// Takes the events that ended a sleep.
    fn take_events(&mut self, handler: &mut impl Handler) -> Result<()> {
        self.bell.silence();
        self.timer.stop_if_due();
        let mut by_completions = false;
        while self.channel.try_next_event()?.is_some() {
            (self.is_armed, by_completions) = (false, true);
        }
        handler.woken(by_completions);
        Ok(())
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.cq.inner.set_driven(false);
    }
}

/// The descriptor is readable when there may be work, once the reactor is armed.
impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Ends the sleep of a [`Reactor`] from any thread.
#[derive(Debug, Clone)]
pub struct Bell(Arc<EventFd>);

impl Bell {
    fn new() -> Result<Self> {
        Ok(Self(Arc::new(EventFd::new().map_err(wait::failed("eventfd2"))?)))
    }

    /// Makes the reactor's descriptor readable, so that it does a turn.
    pub fn ring(&self) {
        self.0.add(1);
    }

    /// Takes what [`ring`](Self::ring) has left.
    fn silence(&self) {
        self.0.take();
    }
}

/// A timer that is set only when its time changes.
#[derive(Debug)]
struct Timer {
    fd: TimerFd,
    at: Option<Instant>,
}

impl Timer {
    fn new() -> Result<Self> {
        let fd = TimerFd::new().map_err(wait::failed("timerfd_create"))?;
        Ok(Self { fd, at: None })
    }

    /// Makes the descriptor readable at a time, or not at all.
    fn set(&mut self, at: Option<Instant>) {
        if self.at == at {
            return;
        }
        let set = self.fd.set(at.map(|at| at.saturating_duration_since(Instant::now())));
        // An error leaves the timer as it was.
        self.at = if set.is_ok() { at } else { self.at };
    }

    /// Ends the descriptor's being readable.
    fn stop_if_due(&mut self) {
        if self.at.is_some_and(|at| at <= Instant::now()) {
            self.set(None);
        }
    }
}
