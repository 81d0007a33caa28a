//! The driver: fetches completions, and sleeps when there are none.
//!
//! One driver serves one completion queue, and any number of queue pairs. Only the driver arms the
//! queue and sleeps, so no wake-up depends on a future that may be dropped. Whoever else fetches a
//! completion (a [`Poller`](crate::Poller), a scope) delivers it to its future too.
//!
//! The driver obeys these rules when it sleeps. It arms the queue and then fetches again, because a
//! completion from before may raise no event. It does not arm an armed queue. It takes events until
//! none is left, because executors may watch the descriptor edge-triggered.

use std::fmt;
use std::future::poll_fn;
use std::hint;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::{DriverOptions, Readiness, Strategy};
use crate::context::Context as Device;
use crate::cq::{CompletionChannel, CompletionQueue, FETCH, Fetched};
use crate::error::{Error, Result, Verb};
use crate::panics::Panics;
use crate::qp::ring::{Cached, Report, Results};
use crate::wait::{self, Deadline, Semaphore};

/// Fetches the completions of a completion queue, and wakes the task that waits for each.
///
/// Run it as a task of the runtime whose tasks use it ([`run`](Self::run)), on a thread of its own
/// ([`wait`](Self::wait) in a loop), or in a poll loop ([`turn`](Self::turn)). When it is dropped,
/// all futures end with [`Error::DriverGone`](super::Error::DriverGone), except those of a queue
/// pair that was dropped before and that the device refused to destroy: these futures stay pending.
pub struct Driver {
    shared: Arc<SharedDriver>,
    options: DriverOptions,
    cached: Cached,
    fetched: Fetched,
    is_armed: bool,
    /// The number of turns without a completion since the last with one.
    idle: u32,
}

/// Access to a [`Driver`]: makes the queue pairs whose completions it fetches.
///
/// While a handle or a queue pair lives, the driver runs.
#[derive(Clone)]
pub struct Handle {
    user: Arc<User>,
}

/// A driver's user. Its drop ends the driver.
struct User {
    shared: Arc<SharedDriver>,
}

/// The state that a driver shares with its handles.
pub(super) struct SharedDriver {
    pub(super) cq: CompletionQueue,
    channel: CompletionChannel,
    /// Readable once no handle is left.
    bell: Semaphore,
    state: Mutex<DriverState>,
}

struct DriverState {
    /// The results of the queue pairs' work queues.
    results: Vec<&'static Results<Report>>,
    is_driven: bool,
    is_used: bool,
    /// The driver's task.
    driver: Option<Waker>,
}

impl Driver {
    /// Creates a completion queue and its driver.
    ///
    /// # Errors
    ///
    /// Errors of creating the completion queue and its channel; too many open files.
    pub fn new(device: &Device, options: &DriverOptions) -> Result<(Self, Handle)> {
        let channel = device.create_completion_channel()?;
        let cq = device.cq_builder(options.depth).channel(&channel).build()?;
        // An event that a poller took would leave the driver asleep, and the queue unarmed.
        cq.inner.set_driven(true);
        let state = DriverState { results: Vec::new(), is_driven: true, is_used: true, driver: None };
        let shared = Arc::new(SharedDriver { cq, channel, bell: Semaphore::new()?, state: Mutex::new(state) });
        let handle = Handle { user: Arc::new(User { shared: Arc::clone(&shared) }) };
        let (cached, fetched) = (Cached::nothing(), Fetched::new());
        Ok((Self { shared, options: options.clone(), cached, fetched, is_armed: false, idle: 0 }, handle))
    }

    /// Fetches and delivers completions until there are none, or until about `budget` were fetched.
    /// Returns the number fetched; never sleeps, and leaves the descriptor as it is:
    /// [`arm`](Self::arm) prepares a sleep.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// A program without a runtime:
    ///
    /// ```
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use rdma::aio::Driver;
    ///
    /// fn run<F: Future>(driver: &mut Driver, future: F) -> rdma::Result<F::Output> {
    ///     let mut future = pin!(future);
    ///     let mut cx = Context::from_waker(Waker::noop());
    ///     loop {
    ///         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
    ///             return Ok(output);
    ///         }
    ///         driver.turn(64)?;
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn turn(&mut self, budget: usize) -> Result<usize> {
        let mut fetched = 0;
        loop {
            let count = self.shared.cq.inner.pump(&mut self.cached, &mut self.fetched)?;
            fetched += count;
            // Less than a full batch is all that there was.
            if count < FETCH || fetched >= budget {
                return Ok(fetched);
            }
        }
    }

    /// Prepares a sleep of the program: takes the events that have made the descriptor readable,
    /// arms the completion queue, and does a turn. Returns whether the program may sleep until the
    /// descriptor is readable; otherwise there may be more work, so arm again.
    ///
    /// A program with an event loop of its own arms, polls the tasks that the turn has woken, and
    /// sleeps if it may. It may watch the descriptor by level or by edge. The end of the last
    /// handle does not make the descriptor readable.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    /// use rdma::aio::Driver;
    ///
    /// fn run<F: Future>(driver: &mut Driver, future: F) -> Result<F::Output, Box<dyn std::error::Error>> {
    ///     let epoll = Epoll::new(EpollCreateFlags::empty())?;
    ///     // Other descriptors of the program have other numbers.
    ///     epoll.add(&*driver, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    ///     let mut future = pin!(future);
    ///     let mut cx = Context::from_waker(Waker::noop());
    ///     loop {
    ///         let may_sleep = driver.arm()?;
    ///         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
    ///             return Ok(output);
    ///         }
    ///         if may_sleep {
    ///             epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)?;
    ///         }
    ///     }
    /// }
    /// ```
    pub fn arm(&mut self) -> Result<bool> {
        self.take_events()?;
        self.request_event()?;
        Ok(self.turn(self.options.budget)? == 0)
    }

    /// Waits until completions were delivered, and returns their number: 0 at the timeout, or when
    /// no handle is left. For a driver with a thread of its own.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn f(mut driver: rdma::aio::Driver) {
    /// std::thread::spawn(move || {
    ///     while driver.is_used() {
    ///         driver.wait(None).expect("the device works");
    ///     }
    /// });
    /// # }
    /// ```
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<usize> {
        let deadline = Deadline::after(timeout);
        let start = Instant::now();
        let mut turns = 0_u32;
        loop {
            let fetched = self.turn(self.options.budget)?;
            if fetched > 0 || !self.is_used() {
                return Ok(fetched);
            }
            turns = turns.saturating_add(1);
            if turns <= self.polls() {
                hint::spin_loop();
            } else if self.options.strategy != Strategy::EventDriven && start.elapsed() < self.options.yields {
                thread::yield_now();
            } else {
                break;
            }
            if deadline.is_over() {
                return Ok(0);
            }
        }
        self.sleep(deadline)
    }

    fn sleep(&mut self, deadline: Deadline) -> Result<usize> {
        loop {
            self.request_event()?;
            let fetched = self.turn(self.options.budget)?;
            if fetched > 0 || !self.is_used() || deadline.is_over() {
                return Ok(fetched);
            }
            let SharedDriver { channel, bell, .. } = &*self.shared;
            wait::any_readable(Verb::GetCqEvent, [Some(channel.inner.fd()), Some(bell.as_fd())], deadline)?;
            self.take_events()?;
        }
    }

    /// Delivers completions until no handle is left. `readiness` waits for this driver's
    /// descriptor.
    ///
    /// # Errors
    ///
    /// Any error that the provider or the executor reports. All futures then end with
    /// [`DriverGone`](super::Error::DriverGone).
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "tokio", doc = "```no_run")]
    #[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
    /// # fn f(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// use rdma::aio::{self, Driver, DriverOptions};
    ///
    /// let (driver, handle) = Driver::new(context, &DriverOptions::new())?;
    /// let readable = aio::tokio::Readable::new(&driver)?;
    /// tokio::spawn(driver.run(readable));
    /// # Ok(()) }
    /// ```
    pub async fn run(mut self, mut readiness: impl Readiness) -> Result<()> {
        poll_fn(|cx| self.poll_run(cx, &mut readiness)).await
    }

    fn poll_run(&mut self, cx: &mut Context<'_>, readiness: &mut impl Readiness) -> Poll<Result<()>> {
        self.shared.check()?;
        if !self.shared.register(cx) {
            return Poll::Ready(Ok(()));
        }
        loop {
            if self.turn(self.options.budget)? > 0 {
                self.idle = 0;
                return give_way(cx);
            }
            if self.idle < self.polls() || self.options.strategy == Strategy::BusyPoll {
                self.idle = self.idle.saturating_add(1);
                return give_way(cx);
            }
            if self.request_event()? {
                continue;
            }
            match readiness.poll_readable(cx) {
                Poll::Ready(readable) => readable.map_err(|error| Error::from_io(Verb::GetCqEvent, &error))?,
                Poll::Pending => return Poll::Pending,
            }
            self.take_events()?;
        }
    }

    /// The number of turns without a completion before the driver sleeps.
    fn polls(&self) -> u32 {
        match self.options.strategy {
            Strategy::BusyPoll => u32::MAX,
            Strategy::EventDriven => 0,
            Strategy::Adaptive { polls } => polls,
        }
    }

    /// Arms the queue unless it is armed; returns whether it did.
    fn request_event(&mut self) -> Result<bool> {
        if self.is_armed {
            return Ok(false);
        }
        self.shared.cq.inner.arm(false)?;
        self.is_armed = true;
        Ok(true)
    }

    fn take_events(&mut self) -> Result<()> {
        while self.shared.channel.try_next_event()?.is_some() {
            self.is_armed = false;
        }
        Ok(())
    }

    /// Whether a handle or a queue pair is left. False in a forked child.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.shared.check().is_ok() && self.shared.lock().is_used
    }
}

/// Lets other tasks run before the next turn.
fn give_way<T>(cx: &Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.shared.check().is_err() {
            return;
        }
        self.shared.cq.inner.set_driven(false);
        let mut state = self.shared.lock();
        state.is_driven = false;
        let results = std::mem::take(&mut state.results);
        let waker = state.driver.take();
        drop(state);
        let mut panics = Panics::default();
        panics.catch(|| drop(waker));
        results.into_iter().for_each(|results| panics.catch(|| results.undrive()));
        panics.resume();
    }
}

impl SharedDriver {
    /// Fails in a forked child, which must not take the lock: another thread of the parent may have
    /// held it at the time of the fork.
    fn check(&self) -> Result<()> {
        self.cq.inner.context.check(Verb::PollCq)
    }

    fn lock(&self) -> MutexGuard<'_, DriverState> {
        // Only failed allocations panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the waker of the driver's task; returns whether a handle is left.
    fn register(&self, cx: &Context<'_>) -> bool {
        let state = self.lock();
        if !state.is_used {
            return false;
        }
        if state.driver.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
            return true;
        }
        drop(state);
        let waker = cx.waker().clone();
        let mut state = self.lock();
        let old = state.driver.replace(waker);
        let is_used = state.is_used;
        drop(state);
        drop(old);
        is_used
    }

    /// Tells the results of a new queue pair when the driver ends.
    pub(super) fn add(&self, results: [&'static Results<Report>; 2]) {
        let mut state = self.lock();
        if state.is_driven {
            state.results.extend(results);
        } else {
            drop(state);
            results.into_iter().for_each(Results::undrive);
        }
    }

    /// Forgets the results of a queue pair that ends.
    pub(super) fn remove(&self, results: [&'static Results<Report>; 2]) {
        let is_other = |other: &&'static Results<Report>| !results.iter().any(|one| std::ptr::eq(*one, *other));
        self.lock().results.retain(is_other);
    }
}

impl Handle {
    /// The completion queue: build queue pairs with it.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue {
        &self.user.shared.cq
    }

    pub(super) fn shared(&self) -> &SharedDriver {
        &self.user.shared
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.shared.check().is_err() {
            return;
        }
        let mut state = self.shared.lock();
        state.is_used = false;
        let waker = state.driver.take();
        drop(state);
        self.shared.bell.post(1);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

lends_descriptor! {
    /// The descriptor is readable while events of the completion queue wait.
    Driver, shared.channel
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("queue", &self.shared.cq).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("queue", self.completion_queue()).finish_non_exhaustive()
    }
}
