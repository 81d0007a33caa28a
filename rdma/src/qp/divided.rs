//! A queue pair whose two work queues have an owner each.
//!
//! # Invariants
//!
//! * **D1.** A queue pair is divided into one [`Part`] for each work queue, and parts are not
//!   copied. A part reaches the queue pair's fields one by one, by raw pointers: its own queue
//!   through a borrow of the part, and the control half by shared references, which change no
//!   field. So no two references overlap, unless both are shared.
//! * **D2.** The queue pair stays where it is while a part or another handle is left: it is taken
//!   out, or dropped, by the holder of the last.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::control::QpInner;
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::Transport;
use super::{QpControl, QueuePair};

/// A divided queue pair, with a value of the floor above, which is dropped before it.
pub(crate) struct Divided<T: Transport, E> {
    extra: E,
    qp: UnsafeCell<QueuePair<T>>,
}

// SAFETY: sharing a divided queue pair is sound: the fields that its parts reach are accessed by
// one thread at a time, or by shared references (D1), and all of them are Send and Sync.
unsafe impl<T: Transport, E: Sync> Sync for Divided<T, E> {}

/// The only access to one work queue of a divided queue pair.
pub(crate) struct Part<Q, T: Transport, E = ()> {
    divided: Arc<Divided<T, E>>,
    queue: PhantomData<Q>,
}

/// One of the two work queues of a queue pair.
pub(crate) trait WorkQueue: Sized {
    /// The address of the queue in its queue pair.
    ///
    /// # Safety
    ///
    /// `qp` points to a queue pair.
    unsafe fn of<T: Transport>(qp: *mut QueuePair<T>) -> *mut Self;
}

impl WorkQueue for SendQueue {
    #[inline(always)]
    unsafe fn of<T: Transport>(qp: *mut QueuePair<T>) -> *mut Self {
        // SAFETY: `&raw mut` requires a pointer into an allocation: the contract of this function.
        // Only an address is computed, nothing is read.
        unsafe { &raw mut (*qp).send }
    }
}

impl WorkQueue for RecvQueue {
    #[inline(always)]
    unsafe fn of<T: Transport>(qp: *mut QueuePair<T>) -> *mut Self {
        // SAFETY: `&raw mut` requires a pointer into an allocation: the contract of this function.
        // Only an address is computed, nothing is read.
        unsafe { &raw mut (*qp).recv }
    }
}

/// The part of the send queue, and that of the receive queue.
pub(crate) type Parts<T, E> = (Part<SendQueue, T, E>, Part<RecvQueue, T, E>);

impl<T: Transport, E> Divided<T, E> {
    /// Divides a queue pair.
    pub(crate) fn divide(qp: QueuePair<T>, extra: E) -> Parts<T, E> {
        Self::parts(Arc::new(Self { extra, qp: UnsafeCell::new(qp) }))
    }

    /// The parts of a queue pair that has none (D1).
    fn parts(this: Arc<Self>) -> Parts<T, E> {
        (Part { divided: Arc::clone(&this), queue: PhantomData }, Part { divided: this, queue: PhantomData })
    }

    /// Puts the parts of one queue pair together. Parts of two queue pairs come back.
    pub(crate) fn reunite((send, recv): Parts<T, E>) -> Result<(QueuePair<T>, E), Parts<T, E>> {
        if !Arc::ptr_eq(&send.divided, &recv.divided) {
            return Err((send, recv));
        }
        drop(recv);
        // Both parts are gone now, so the error has the only ones again (D1).
        let Self { extra, qp } = Arc::try_unwrap(send.divided).map_err(Self::parts)?;
        Ok((qp.into_inner(), extra))
    }

    /// What can be done without a work queue.
    pub(crate) fn control(&self) -> QpControl<'_, T> {
        let qp = self.qp.get();
        // SAFETY: `&raw` requires a pointer into an allocation: the queue pair is in the cell (D2).
        // Only an address is computed, nothing is read.
        let control = unsafe { &raw const (*qp).control };
        // SAFETY: the reference requires an initialised value that no thread writes while `self` is
        // borrowed: the queue pair is in the cell (D2), and there are only shared references to its
        // control half (D1).
        let control: &QpInner = unsafe { &*control };
        QpControl::new(control)
    }

    #[cfg(feature = "aio")]
    pub(crate) fn extra(&self) -> &E {
        &self.extra
    }
}

impl<Q: WorkQueue, T: Transport, E> Part<Q, T, E> {
    /// The work queue.
    #[inline(always)]
    pub(crate) fn queue(&self) -> &Q {
        // SAFETY: `of` requires a pointer to a queue pair: it is in the cell (D2).
        let queue = unsafe { Q::of(self.divided.qp.get()) };
        // SAFETY: the reference requires an initialised value that no thread writes while `self` is
        // borrowed: only this part writes to its queue, through `&mut self` (D1).
        unsafe { &*queue }
    }

    /// The work queue, to post to it.
    #[inline(always)]
    pub(crate) fn queue_mut(&mut self) -> &mut Q {
        // SAFETY: `of` requires a pointer to a queue pair: it is in the cell (D2).
        let queue = unsafe { Q::of(self.divided.qp.get()) };
        // SAFETY: the reference requires an initialised value that nothing else accesses while
        // `self` is borrowed: only this part accesses its queue (D1).
        unsafe { &mut *queue }
    }

    /// The queue pair that the part is of, for what needs no work queue.
    #[inline]
    pub(crate) fn divided(&self) -> &Arc<Divided<T, E>> {
        &self.divided
    }
}
