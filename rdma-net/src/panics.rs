//! Panics of a caller's code, kept until the work around it has been done.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The last panic of a waker or drop of the program, kept until all have run: a task that was
/// skipped would wait for ever. Other panics are leaked: the drop of a panic's payload may panic,
/// too.
#[derive(Default)]
pub(crate) struct Panics(Option<ManuallyDrop<Box<dyn Any + Send>>>);

impl Panics {
    pub(crate) fn catch(&mut self, give_up: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(give_up)) {
            self.0 = Some(ManuallyDrop::new(panic));
        }
    }

    pub(crate) fn resume(self) {
        if let Some(panic) = self.0.filter(|_| !std::thread::panicking()) {
            resume_unwind(ManuallyDrop::into_inner(panic));
        }
    }
}
