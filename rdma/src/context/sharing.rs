//! The asynchronous events of a context, for the program and for the nodes on the device.
//!
//! A provider hands out each event once. Whoever takes one leaves a copy for each of the others: a
//! node needs the events of its own queues, and keeps none from the program.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::{AsyncEvent, Context};
use crate::error::{Result, Verb};
use crate::os::Epoll;
use crate::wait::{self, Semaphore};

/// The events that were taken and that others have not seen.
#[derive(Default)]
pub(super) struct EventSharing {
    copies: Mutex<Copies>,
    /// Readable while copies wait for the program; made with the first tap.
    bell: OnceLock<Semaphore>,
}

#[derive(Default)]
struct Copies {
    program: VecDeque<AsyncEvent>,
    taps: Vec<Weak<TapQueue>>,
}

/// The copies for one tap.
struct TapQueue {
    events: Mutex<VecDeque<AsyncEvent>>,
    bell: Semaphore,
}

impl TapQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: AsyncEvent) {
        self.lock().push_back(event);
        self.bell.post(1);
    }

    fn pop(&self) -> Option<AsyncEvent> {
        let event = self.lock().pop_front()?;
        self.bell.take();
        Some(event)
    }
}

impl EventSharing {
    fn lock(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that is readable while copies wait for the program.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.get().map(AsFd::as_fd)
    }

    /// The program's next event: a copy, or the provider's, which `take` takes.
    pub(super) fn next_for_program(
        &self,
        take: impl FnOnce() -> Result<Option<AsyncEvent>>,
    ) -> Result<Option<AsyncEvent>> {
        // Taken under the lock, so that all see the events in one order.
        let mut copies = self.lock();
        if let Some(event) = copies.program.pop_front() {
            self.bell.get().into_iter().for_each(Semaphore::take);
            return Ok(Some(event));
        }
        let event = take()?;
        event.into_iter().for_each(|event| copies.leave_for_taps(event, None));
        Ok(event)
    }

    fn leave_for_program(&self, copies: &mut Copies, event: AsyncEvent) {
        if copies.program.len() < EventTap::PROGRAM_LIMIT {
            copies.program.push_back(event);
            self.bell.get().into_iter().for_each(|bell| bell.post(1));
        }
    }

    /// Leaves a copy for the program, as a tap does.
    #[cfg(test)]
    pub(in crate::context) fn copy_to_program(&self, event: AsyncEvent) {
        self.leave_for_program(&mut self.lock(), event);
    }
}

impl Copies {
    /// Leaves a copy for each tap but the one that has taken the event.
    fn leave_for_taps(&mut self, event: AsyncEvent, taker: Option<&Arc<TapQueue>>) {
        let is_taker = |tap: &Arc<TapQueue>| taker.is_some_and(|taker| Arc::ptr_eq(taker, tap));
        let others = self.taps.iter().filter_map(Weak::upgrade).filter(|tap| !is_taker(tap));
        others.for_each(|tap| tap.push(event));
    }
}

/// A reader of all asynchronous events of a device, beside the program itself and other readers.
///
/// A reader that takes an event from the device leaves a copy for each other reader, so a library
/// that needs the events takes none away from its program. Up to 256 copies wait for a program that
/// never asks; those for a tap are not limited: read it, or drop it. All readers see the events in
/// one order.
///
/// The descriptor ([`AsFd`]) is readable while events may wait for this tap.
///
/// # Examples
///
/// ```
/// use rdma::EventTap;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let tap = EventTap::new(&context)?;
/// while let Some(event) = tap.try_next_event()? {
///     println!("{}", event.kind);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_get_async_event")]
pub struct EventTap {
    context: Context,
    queue: Arc<TapQueue>,
    /// Watches the device's events and the copies. The descriptor of the device is never lent.
    lent: Epoll,
}

impl EventTap {
    /// Copies that wait for the program, which may never ask for events. Later ones are dropped.
    const PROGRAM_LIMIT: usize = 256;

    /// Begins to read the events of a context, from the next one on.
    ///
    /// # Errors
    ///
    /// `Forked`; errors of the system calls that make a descriptor.
    pub fn new(context: &Context) -> Result<Self> {
        context.inner.check(Verb::GetAsyncEvent)?;
        let sharing = &context.inner.sharing;
        let queue = Arc::new(TapQueue { events: Mutex::default(), bell: Semaphore::new()? });
        let lent = wait::epoll()?;
        wait::watch(&lent, context.inner.events.own())?;
        wait::watch(&lent, queue.bell.as_fd())?;
        let mut copies = sharing.lock();
        if sharing.bell.get().is_none() {
            let bell = Semaphore::new()?;
            context.inner.events.watch_too(bell.as_fd())?;
            // Set under the lock, so once.
            let _set = sharing.bell.set(bell);
        }
        copies.taps.retain(|tap| tap.strong_count() > 0);
        copies.taps.push(Arc::downgrade(&queue));
        drop(copies);
        Ok(Self { context: context.clone(), queue, lent })
    }

    /// Takes the next event, if there is one; never waits.
    ///
    /// # Errors
    ///
    /// As for [`Context::try_next_event`].
    pub fn try_next_event(&self) -> Result<Option<AsyncEvent>> {
        self.context.inner.check(Verb::GetAsyncEvent)?;
        let sharing = &self.context.inner.sharing;
        let mut copies = sharing.lock();
        if let Some(event) = self.queue.pop() {
            return Ok(Some(event));
        }
        let Some(event) = self.context.take_event()? else { return Ok(None) };
        copies.leave_for_taps(event, Some(&self.queue));
        sharing.leave_for_program(&mut copies, event);
        Ok(Some(event))
    }
}

impl AsFd for EventTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lent.as_fd()
    }
}

impl fmt::Debug for EventTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventTap").field("context", &self.context).finish_non_exhaustive()
    }
}
