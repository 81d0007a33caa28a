//! The primary context of a GPU, which the CUDA runtime and all libraries of a process share.
//!
//! Most calls of the driver work on the context that is current in the calling thread. Each such
//! call runs in [`Primary::with`], which pushes the GPU's primary context, calls, and pops it, so
//! the caller's own current context is never changed.

use crate::cuda_error::CudaError;
use crate::driver::{ContextHandle, DeviceHandle, Driver};

/// A retained primary context; released when dropped.
#[derive(Debug)]
pub(crate) struct Primary {
    driver: &'static Driver,
    device: DeviceHandle,
    context: ContextHandle,
}

impl Primary {
    /// Retains the primary context of a device, and creates it if this is its first use.
    pub(crate) fn retain(driver: &'static Driver, device: DeviceHandle) -> Result<Self, CudaError> {
        let mut context = 0;
        // SAFETY: cuDevicePrimaryCtxRetain requires space for a handle, and a device of
        // cuDeviceGet.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device) }?;
        Ok(Self { driver, device, context })
    }

    /// The context's handle, valid as long as `self`.
    pub(crate) fn handle(&self) -> ContextHandle {
        self.context
    }

    /// Calls the driver with the context current in this thread.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&'static Driver) -> Result<T, CudaError>) -> Result<T, CudaError> {
        let _current = Current::push(self)?;
        call(self.driver)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: cuDevicePrimaryCtxRelease requires that the context was retained: `retain` did,
        // and every object of the context holds this one.
        if let Err(error) = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) } {
            tracing::warn!("the context of a GPU is not released: {error}");
        }
    }
}

/// The context at the top of the calling thread's stack of contexts; popped when dropped.
struct Current {
    driver: &'static Driver,
    /// The stack belongs to the thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Current {
    fn push(primary: &Primary) -> Result<Self, CudaError> {
        // SAFETY: cuCtxPushCurrent requires a context that is not destroyed: `primary` retains it.
        unsafe { primary.driver.cuCtxPushCurrent_v2(primary.context) }?;
        Ok(Self { driver: primary.driver, _not_send: std::marker::PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: cuCtxPopCurrent requires space for a handle. It pops the context that `push`
        // pushed: each `Current` is dropped before those below it.
        if let Err(error) = unsafe { self.driver.cuCtxPopCurrent_v2(&raw mut context) } {
            // The result of the call itself must not be lost: it may own memory.
            tracing::warn!("the context of a GPU stays current in this thread: {error}");
        }
    }
}
