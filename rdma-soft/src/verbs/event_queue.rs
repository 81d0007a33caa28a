//! A queue of events with a file descriptor that behaves like the kernel's event files: the
//! descriptor is readable for `poll`, `select` and `epoll` exactly while events are queued,
//! edge-triggered `epoll` fires once per event, and `O_NONBLOCK` set by `fcntl` is obeyed.
//!
//! The descriptor is an `eventfd` in semaphore mode that counts the queue's entries, so the kernel
//! itself provides this behaviour. Invariants:
//!
//! 1. A thread queues an entry before it raises the counter, and takes an entry only after it has
//!    lowered the counter. An entry that is removed before its count takes the count along:
//!    `unraised` and `cancelled` say how many counts are to come, and under the lock the counter is
//!    the number of entries less `unraised`, or less for reads whose thread has not taken its entry
//!    yet. So the counter never exceeds the number of entries, with two exceptions: counts that
//!    [`EventQueue::retract`] failed to lower, and counts that the application added by writing to
//!    the descriptor. An application must neither write to the descriptor nor read it: a read
//!    leaves an entry without a count.
//! 2. The descriptor is owned by the queue and open as long as the queue exists.
//! 3. An event in a [`Reception`] is not counted, and no other thread takes it. A thread opens a
//!    reception only while the queue is empty; an event that the thread has not taken when it
//!    closes the reception becomes the first entry, and is counted.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::task::Wake;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::os::lock::Lock;
use crate::os::thread::NoCancellation;
use crate::os::{self, Named};

/// Number of reads in `EventQueue::wait` that may find no entry before the wait gives up.
/// Retracted events that are still counted cause a few such reads; more mean that the application
/// wrote to the descriptor.
const FUTILE: u32 = 1 << 16;

/// A queue of events, and the descriptor that counts them.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    entries: Lock<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    queue: VecDeque<T>,
    /// Entries for which the counter is not raised yet.
    unraised: usize,
    /// Calls of [`EventQueue::raise`] to come for entries that were removed.
    cancelled: usize,
    /// Where the thread that has opened a reception gets its event.
    reception: Option<Seat<T>>,
}

/// The state of a [`Reception`].
#[derive(Debug)]
struct Seat<T> {
    event: Option<T>,
    /// The function that wakes the thread, if the thread sleeps or is about to.
    wake: Option<fn()>,
}

/// A thread's reservation of the next event, which then costs neither a write nor a read of the
/// descriptor.
#[derive(Debug)]
pub(crate) struct Reception<'a, T>(&'a EventQueue<T>);

impl<T> Reception<'_, T> {
    /// Takes the event, if it has come.
    pub(crate) fn take<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        self.0.entries.lock().reception.as_mut()?.event.take().map(take)
    }

    /// Whether the thread may sleep: no event has come, and `wake` will be called when one comes.
    pub(crate) fn may_sleep(&self, wake: fn()) -> bool {
        let mut entries = self.0.entries.lock();
        let Some(seat) = &mut entries.reception else { return false };
        seat.wake = Some(wake);
        seat.event.is_none()
    }

    /// The thread is awake: it looks for the event itself.
    pub(crate) fn stay_awake(&self) {
        if let Some(seat) = &mut self.0.entries.lock().reception {
            seat.wake = None;
        }
    }
}

impl<T> Drop for Reception<'_, T> {
    fn drop(&mut self) {
        let mut entries = self.0.entries.lock();
        let left = entries.reception.take().and_then(|seat| seat.event);
        let Some(event) = left else { return };
        entries.queue.push_front(event);
        entries.unraised += 1;
        drop(entries);
        self.0.raise();
    }
}

/// Raises the counter for an entry: wakes a thread that sleeps on the descriptor.
impl<T: Send> Wake for EventQueue<T> {
    fn wake(self: Arc<Self>) {
        self.raise();
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> os::Result<Self> {
        let counter = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC).named("eventfd2")?;
        let entries = Entries { queue: VecDeque::new(), unraised: 0, cancelled: 0, reception: None };
        Ok(Self { fd: counter.into(), entries: Lock::new(entries) })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event and wakes one waiter, if `admit` returns true. `admit` runs under the queue's
    /// lock.
    pub(crate) fn offer(&self, event: T, admit: impl FnOnce(&T) -> bool) {
        if self.enqueue(event, admit) {
            self.raise();
        }
    }

    /// Adds an event, as [`EventQueue::offer`] does. True if the caller has to [raise](Self::raise)
    /// the counter once, which it may do later.
    pub(crate) fn enqueue(&self, event: T, admit: impl FnOnce(&T) -> bool) -> bool {
        let mut entries = self.entries.lock();
        if !admit(&event) {
            return false;
        }
        if let Some(seat) = entries.reception.as_mut().filter(|seat| seat.event.is_none()) {
            seat.event = Some(event);
            let wake = seat.wake.take();
            drop(entries);
            if let Some(wake) = wake {
                wake();
            }
            return false;
        }
        entries.queue.push_back(event);
        entries.unraised += 1;
        true
    }

    /// Reserves the next event for this thread. None if an event is queued, if another thread has
    /// reserved the next one, or if the descriptor is non-blocking.
    pub(crate) fn receive(&self) -> Option<Reception<'_, T>> {
        let is_busy = |entries: &Entries<T>| !entries.queue.is_empty() || entries.reception.is_some();
        if is_busy(&self.entries.lock()) {
            return None;
        }
        // SAFETY: `fcntl` requires an open descriptor (invariant 2) and the argument that the
        // command takes: `F_GETFL` takes none.
        let flags = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_GETFL) };
        let mut entries = self.entries.lock();
        if flags < 0 || flags & libc::O_NONBLOCK != 0 || is_busy(&entries) {
            return None;
        }
        entries.reception = Some(Seat { event: None, wake: None });
        Some(Reception(self))
    }

    /// Raises the counter for a new entry, which wakes one reader; does nothing if the entry was
    /// removed meanwhile.
    fn raise(&self) {
        let _guard = NoCancellation::new();
        // Held during the write, so that a removal finds the count that it has to take back.
        let mut entries = self.entries.lock();
        if entries.cancelled > 0 {
            entries.cancelled -= 1;
            return;
        }
        entries.unraised = entries.unraised.saturating_sub(1);
        let one = 1_u64;
        // SAFETY: `write` requires an open descriptor (invariant 2) and as many readable bytes:
        // `one` has 8. The call blocks or fails only if the counter is at its limit of 2^64 - 2,
        // which needs the application's own writes.
        let _written = unsafe { libc::write(self.fd.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }

    /// Takes the oldest event. Waits for one unless the descriptor is non-blocking (`EAGAIN`).
    /// `take` runs under the queue's lock, so an [`EventQueue::retract`] happens wholly before or
    /// wholly after it.
    pub(crate) fn wait<R>(&self, take: impl Fn(T) -> R) -> io::Result<R> {
        let mut reads = 1;
        loop {
            let mut count = 0_u64;
            // SAFETY: `read` requires an open descriptor (invariant 2) and as many writable bytes:
            // `count` has 8.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), ptr::from_mut(&mut count).cast(), size_of::<u64>()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(taken) = self.take_after(reads, &take)? {
                return Ok(taken);
            }
            reads += 1;
        }
    }

    /// Takes the oldest event, after the caller has read the descriptor for the `reads`th time.
    /// `None` if the event was retracted meanwhile: the caller reads again.
    pub(crate) fn take_after<R>(&self, reads: u32, take: impl FnOnce(T) -> R) -> io::Result<Option<R>> {
        let mut entries = self.entries.lock();
        let taken = entries.queue.pop_front().map(take);
        drop(entries);
        if taken.is_none() && reads >= FUTILE {
            // The application wrote to the descriptor: up to 2^64 reads could find no entry.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(taken)
    }

    /// Removes the events that match. `seal` runs under the queue's lock, after the removal.
    pub(crate) fn retract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> R {
        self.extract(matches, seal).1
    }

    /// Removes the events that match, as [`EventQueue::retract`] does, and returns them in order.
    pub(crate) fn extract<R>(&self, matches: impl Fn(&T) -> bool, seal: impl FnOnce() -> R) -> (Vec<T>, R) {
        let mut entries = self.entries.lock();
        let mut removed = Vec::new();
        if let Some(seat) = &mut entries.reception {
            removed.extend(seat.event.take_if(|event| matches(event)));
        }
        for event in std::mem::take(&mut entries.queue) {
            if matches(&event) {
                removed.push(event);
                self.uncount(&mut entries);
            } else {
                entries.queue.push_back(event);
            }
        }
        // The thread whose event was removed would sleep without looking at the queue.
        let Entries { queue, reception, .. } = &mut *entries;
        if let Some(seat) = reception.as_mut().filter(|seat| seat.event.is_none()) {
            seat.event = queue.pop_front();
            if seat.event.is_some() {
                self.uncount(&mut entries);
            }
        }
        let sealed = seal();
        drop(entries);
        (removed, sealed)
    }

    /// Takes back the count of a removed entry.
    fn uncount(&self, entries: &mut Entries<T>) {
        if entries.unraised > 0 {
            entries.unraised -= 1;
            entries.cancelled += 1;
        } else {
            self.lower();
        }
    }

    /// Lowers the counter by one without blocking, whatever the descriptor's mode. If a waiter
    /// lowered it first, or the kernel lacks `RWF_NOWAIT` for an eventfd (before Linux 5.8), the
    /// counter stays one too high: the next wait that finds no entry reads again.
    fn lower(&self) {
        let mut count = 0_u64;
        let buffer = libc::iovec { iov_base: ptr::from_mut(&mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: `preadv2` requires an open descriptor (invariant 2) and valid iovecs: `buffer` is
        // the only one, and its 8 bytes are those of `count`.
        unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const buffer, 1, -1, libc::RWF_NOWAIT) };
    }
}

#[cfg(test)]
mod tests;
