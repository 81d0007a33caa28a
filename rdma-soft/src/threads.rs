//! The threads that serve this process for as long as it lives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::log::log;
use crate::os::Result;
use crate::os::thread::spawn;

/// Starts a thread that takes turns for as long as the process lives. A panic ends a turn, not the
/// thread: the next turns serve the objects that the panic did not concern.
pub(crate) fn spawn_loop(name: &'static str, mut turn: impl FnMut() + Send + 'static) -> Result<()> {
    spawn(name, move || {
        loop {
            if catch_unwind(AssertUnwindSafe(&mut turn)).is_err() {
                // The panic hook has reported the panic itself.
                log!(ERROR, "the thread {name} of the software RDMA device panicked; this is a defect of rdma-soft");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    })
}
