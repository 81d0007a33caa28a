//! Support for this crate's unit tests: the driver that they run on.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fmt, thread};

use crate::memory::DeviceMemory;
use crate::{Driver, Gpu, GpuSlice};

/// The driver for tests: the machine's, if it has a driver and a GPU, else the stand-in.
pub(crate) fn driver() -> &'static Driver {
    static CHOSEN: OnceLock<&'static Driver> = OnceLock::new();
    let driver = *CHOSEN.get_or_init(|| {
        let real = Driver::load().ok().filter(|driver| driver.gpus().is_ok_and(|gpus| !gpus.is_empty()));
        let driver = real.unwrap_or_else(stand_in);
        rdma_test_support::say(&format!("tests run on {driver:?}"));
        driver
    });
    if driver.path() != stand_in().path() {
        wait_for_other_tests();
    }
    driver
}

/// Waits until no other test uses the real driver, and keeps others waiting until this thread ends.
///
/// A test that holds a stream back must be alone: another one's call, to free memory or to load
/// kernels, may wait for all work of the GPU, with a lock of the driver that the first one needs.
fn wait_for_other_tests() {
    static ONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    // Threads that a test starts belong to it, and have no name; each test's thread has one.
    if thread::current().name().is_some() {
        TURN.with_borrow_mut(|turn| {
            turn.get_or_insert_with(|| ONE.lock().unwrap_or_else(PoisonError::into_inner));
        });
    }
}

/// The first GPU of a real driver; without one the test is skipped.
pub(crate) fn hardware() -> Option<Gpu> {
    let is_real = driver().path() != stand_in().path();
    if !is_real {
        rdma_test_support::skip("there is no GPU");
    }
    is_real.then(|| driver().gpu(0).expect("the driver has a GPU"))
}

/// The stand-in, for tests that need its knobs.
pub(crate) fn stand_in() -> &'static Driver {
    static LOADED: OnceLock<&'static Driver> = OnceLock::new();
    LOADED.get_or_init(|| {
        // SAFETY: load_from requires an implementation of the driver API: the stand-in is one.
        unsafe { Driver::load_from(&rdma_cuda_stand_in::path()) }.expect("the stand-in is built with the tests")
    })
}

/// A slice as memory of its own, with a value that is dropped with it.
#[derive(Debug)]
pub(crate) struct Part<T>(pub(crate) GpuSlice<u8>, pub(crate) T);

// SAFETY: (1) to (4) as the owner of the slice, which the slice keeps.
unsafe impl<T: fmt::Debug + Send + Sync + 'static> DeviceMemory for Part<T> {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn gpu(&self) -> &Gpu {
        self.0.gpu()
    }
}
