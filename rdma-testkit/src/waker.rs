//! Wakers whose clones run code of the test.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{RawWaker, RawWakerVTable, Waker};

type OnClone = Box<dyn Fn() + Send + Sync>;

/// The data of each waker is a pointer from `Arc<OnClone>`, which the waker owns.
static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, |_| {}, wake);

/// A waker that calls a function whenever it is cloned, as its clones do.
#[must_use]
pub fn on_clone(function: impl Fn() + Send + Sync + 'static) -> Waker {
    waker(Arc::new(Box::new(function)))
}

fn waker(on_clone: Arc<OnClone>) -> Waker {
    // SAFETY: `new` requires functions that keep the contract of RawWaker: they are safe on any
    // thread, since the function is Send and Sync, and each takes data of this table: VTABLE's
    // invariant.
    unsafe { Waker::new(Arc::into_raw(on_clone).cast(), &VTABLE) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: from_raw requires a pointer of into_raw for the same type, and one owner: VTABLE's
    // invariant, and ManuallyDrop leaves the ownership to the waker.
    let on_clone = ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<OnClone>()) });
    on_clone();
    RawWaker::new(Arc::into_raw(Arc::clone(&on_clone)).cast(), &VTABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: from_raw requires a pointer of into_raw for the same type, and one owner: VTABLE's
    // invariant, and the waker is gone after the call.
    drop(unsafe { Arc::from_raw(data.cast::<OnClone>()) });
}
