//! Panics of code that is not this crate's.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the application, whose panic ends here; false if it panicked. The payload leaks,
/// because its drop is code of the application too.
pub(crate) fn contain(code: impl FnOnce()) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(code));
    let completed = ended.is_ok();
    ended.unwrap_or_else(mem::forget);
    completed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_when_dropped_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert!(contain(|| {}));
        assert!(!contain(|| std::panic::panic_any(Bomb)));
    }
}
