//! Support for this crate's unit tests: the driver that they run on.

use std::fmt;
use std::sync::OnceLock;

use crate::memory::DeviceMemory;
use crate::{Driver, Gpu, GpuSlice};

/// The driver for tests: the machine's, if it has a driver and a GPU, else the stand-in.
pub(crate) fn driver() -> &'static Driver {
    static CHOSEN: OnceLock<&'static Driver> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let real = Driver::load().ok().filter(|driver| driver.gpus().is_ok_and(|gpus| !gpus.is_empty()));
        let driver = real.unwrap_or_else(stand_in);
        rdma_test_support::say(&format!("tests run on {driver:?}"));
        driver
    })
}

/// The stand-in, for tests that need its knobs.
pub(crate) fn stand_in() -> &'static Driver {
    static LOADED: OnceLock<&'static Driver> = OnceLock::new();
    LOADED.get_or_init(|| {
        // SAFETY: load_from wants an implementation of the driver API: the stand-in is one.
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
