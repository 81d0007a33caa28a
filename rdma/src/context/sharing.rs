//! The asynchronous events of a context, for the program and for the nodes on the device.
//!
//! A provider hands out each event once. Whoever takes one leaves a copy for each of the others: a
//! node needs the events of its own queues, and keeps none from the program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::AsyncEvent;
use crate::error::Result;
use crate::wait::Semaphore;

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
}

impl Copies {
    /// Leaves a copy for each tap but the one that has taken the event.
    fn leave_for_taps(&mut self, event: AsyncEvent, taker: Option<&Arc<TapQueue>>) {
        let is_taker = |tap: &Arc<TapQueue>| taker.is_some_and(|taker| Arc::ptr_eq(taker, tap));
        let others = self.taps.iter().filter_map(Weak::upgrade).filter(|tap| !is_taker(tap));
        others.for_each(|tap| tap.push(event));
    }
}

#[cfg(feature = "net")]
pub(crate) use tap::EventTap;

#[cfg(feature = "net")]
mod tap {
    use super::*;
    use crate::context::Context;
    use crate::error::Operation;

    /// Copies that wait for the program, which may never ask for events. Later ones are dropped.
    const PROGRAM_LIMIT: usize = 256;

    /// A part of the program that sees all events of a context, beside the program itself.
    pub(crate) struct EventTap {
        context: Context,
        queue: Arc<TapQueue>,
    }

    impl EventTap {
        pub(crate) fn new(context: &Context) -> Result<Self> {
            context.inner.check(Operation::GetAsyncEvent)?;
            let sharing = &context.inner.sharing;
            let queue = Arc::new(TapQueue { events: Mutex::default(), bell: Semaphore::new()? });
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
            Ok(Self { context: context.clone(), queue })
        }

        /// The descriptors of which one is readable while events wait for this tap.
        pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
            [self.context.inner.events.own(), self.queue.bell.as_fd()]
        }

        /// Takes the next event.
        pub(crate) fn next(&self) -> Result<Option<AsyncEvent>> {
            self.context.inner.check(Operation::GetAsyncEvent)?;
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

    impl TapQueue {
        fn pop(&self) -> Option<AsyncEvent> {
            let event = self.lock().pop_front()?;
            self.bell.take();
            Some(event)
        }
    }

    impl EventSharing {
        fn leave_for_program(&self, copies: &mut Copies, event: AsyncEvent) {
            if copies.program.len() < PROGRAM_LIMIT {
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
}
