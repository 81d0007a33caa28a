//! The driver: fetches completions, and sleeps when there are none.
//!
//! One driver serves one completion queue, and any number of queue pairs. Only the driver arms the
//! queue and sleeps, so no wake-up depends on a future that may be dropped. Whoever else fetches a
//! completion (a [`Poller`](crate::Poller), a scope) delivers it to its future too.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use super::{Bell, DriverOptions, Handler, Reactor, Readiness};
use crate::context::Context as Device;
use crate::cq::{CompletionQueue, FETCH, Fetched};
use crate::error::{Result, Verb};
use crate::panics::Panics;
use crate::ring::{Cached, Report, Results};
use crate::wait::Deadline;

/// Fetches the completions of a completion queue, and wakes the task that waits for each.
///
/// Run it as a task of the runtime whose tasks use it ([`run`](Self::run)), on a thread of its own
/// ([`wait`](Self::wait) in a loop), or in a poll loop ([`turn`](Self::turn)). When it is dropped,
/// all futures end with [`Error::DriverGone`](super::Error::DriverGone), except those of a queue
/// pair that was dropped before and that the device refused to destroy: these futures stay pending.
pub struct Driver {
    reactor: Reactor,
    reports: Reports,
}

/// Access to a [`Driver`]: makes the queue pairs whose completions it fetches.
///
/// While a handle or a queue pair lives, the driver runs.
#[derive(Clone)]
pub struct Handle {
    user: Arc<User>,
}

/// The handler of a driver: fetches completions, whose sinks wake the tasks.
struct Reports {
    shared: Arc<SharedDriver>,
    cached: Cached,
    fetched: Fetched,
}

/// A driver's user. Its drop ends the driver.
struct User {
    shared: Arc<SharedDriver>,
}

/// The state that a driver shares with its handles.
pub(super) struct SharedDriver {
    pub(super) cq: CompletionQueue,
    /// Rings once no handle is left.
    bell: Bell,
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
        let reactor = Reactor::new(device, options)?;
        let (cq, bell) = (reactor.completion_queue().clone(), reactor.bell());
        let state = DriverState { results: Vec::new(), is_driven: true, is_used: true, driver: None };
        let shared = Arc::new(SharedDriver { cq, bell, state: Mutex::new(state) });
        let handle = Handle { user: Arc::new(User { shared: Arc::clone(&shared) }) };
        let reports = Reports { shared, cached: Cached::nothing(), fetched: Fetched::new() };
        Ok((Self { reactor, reports }, handle))
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
        self.reports.turn(budget)
    }

    /// Prepares a sleep of the program: takes the events that have made the descriptor readable,
    /// arms the completion queue, and does a turn. Returns whether the program may sleep until the
    /// descriptor is readable; otherwise there may be more work, so arm again.
    ///
    /// A program with an event loop of its own arms, polls the tasks that the turn has woken, and
    /// sleeps if it may. It may watch the descriptor by level or by edge. The end of the last
    /// handle makes the descriptor readable, too.
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
        self.reactor.arm(&mut self.reports)
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
        let mut fetched = self.reactor.wait(&mut self.reports, timeout)?;
        // Another thread may have taken the completions whose event ended a sleep.
        while fetched == 0 && self.is_used() && !deadline.is_over() {
            fetched = self.reactor.sleep(&mut self.reports, deadline)?;
        }
        Ok(fetched)
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
        let Self { reactor, reports } = &mut self;
        poll_fn(|cx| {
            reports.shared.register(cx)?;
            reactor.poll_run(cx, reports, &mut readiness)
        })
        .await
    }

    /// Whether a handle or a queue pair is left. False in a forked child.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.reports.is_over()
    }
}

impl Handler for Reports {
    #[inline]
    fn turn(&mut self, budget: usize) -> Result<usize> {
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

    fn is_over(&self) -> bool {
        self.shared.check().is_err() || !self.shared.lock().is_used
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let shared = &self.reports.shared;
        if shared.check().is_err() {
            return;
        }
        let mut state = shared.lock();
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

    /// Leaves the waker of the driver's task. Fails in a forked child.
    fn register(&self, cx: &Context<'_>) -> Result<()> {
        self.check()?;
        if self.lock().driver.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
            return Ok(());
        }
        let waker = cx.waker().clone();
        let old = self.lock().driver.replace(waker);
        drop(old);
        Ok(())
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
        self.shared.bell.ring();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

lends_descriptor! {
    /// The descriptor is readable while events of the completion queue wait, and once no handle is
    /// left.
    Driver, reactor
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("queue", &self.reports.shared.cq).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("queue", self.completion_queue()).finish_non_exhaustive()
    }
}
