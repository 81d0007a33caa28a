//! Events: points in the work of a stream.

use std::sync::Arc;

use crate::driver::EventHandle;
use crate::error::{CudaError, Result};
use crate::gpu::Gpu;

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: std::ffi::c_uint = 2;

/// A point in the work of a stream, recorded by [`Stream::record`](crate::Stream::record). Clones
/// are the same event.
#[derive(Debug, Clone)]
pub struct Event(Arc<Created>);

impl Event {
    /// An event that counts as done until a stream records it.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: cuEventCreate requires space for a handle and a current context, which `with`
        // sets.
        gpu.with(|driver| unsafe { driver.cuEventCreate(&raw mut handle, DISABLE_TIMING) })?;
        Ok(Self(Arc::new(Created { gpu: gpu.clone(), handle })))
    }

    /// The event's `CUevent`.
    pub(crate) fn handle(&self) -> EventHandle {
        self.0.handle
    }

    /// Whether the work before the event is done.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: cuEventQuery requires an event that is not destroyed.
        match self.0.gpu.with(|driver| unsafe { driver.cuEventQuery(self.0.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == CudaError::NOT_READY => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the work before the event is done.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: cuEventSynchronize requires an event that is not destroyed.
        Ok(self.0.gpu.with(|driver| unsafe { driver.cuEventSynchronize(self.0.handle) })?)
    }
}

impl PartialEq for Event {
    /// Whether both are the same event.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Event {}

/// An event that exists; destroyed when dropped.
#[derive(Debug)]
struct Created {
    gpu: Gpu,
    handle: EventHandle,
}

impl Drop for Created {
    fn drop(&mut self) {
        // SAFETY: cuEventDestroy requires an event that nobody uses; the driver keeps what streams
        // that wait for it need.
        if let Err(error) = self.gpu.with(|driver| unsafe { driver.cuEventDestroy_v2(self.handle) }) {
            tracing::warn!("an event leaks: {error}");
        }
    }
}
