//! The copier of a GPU's memory for the software device, which cannot access that memory.
//!
//! Copies run on a stream of their own, which does not wait for kernels of other streams.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdma::{Copier, CopierThread, CopyFailed};

use crate::driver::{DeviceHandle, Driver, StreamHandle};
use crate::error::{CudaError, Error};
use crate::gpu::Gpu;
use crate::stream::Stream;

/// The threads that copy for the regions that exist, one for each GPU of each driver.
static THREADS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    /// The address of the driver, which is never unloaded.
    driver: usize,
    device: DeviceHandle,
    thread: Weak<CopierThread>,
}

/// The thread that copies the memory of a GPU.
pub(super) fn of(gpu: &Gpu) -> Result<Arc<CopierThread>, Error> {
    let (driver, device) = (std::ptr::from_ref(gpu.driver()).addr(), gpu.device());
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = threads.iter().find(|entry| entry.driver == driver && entry.device == device);
    if let Some(thread) = found.and_then(|entry| entry.thread.upgrade()) {
        return Ok(thread);
    }
    let thread = Arc::new(CopierThread::start(GpuCopier { stream: Stream::new(gpu)? })?);
    threads.retain(|entry| entry.thread.strong_count() > 0);
    threads.push(Entry { driver, device, thread: Arc::downgrade(&thread) });
    Ok(thread)
}

struct GpuCopier {
    stream: Stream,
}

impl GpuCopier {
    /// Runs a copy from or to `bytes`.
    fn run(
        &self,
        bytes: Vec<u8>,
        call: impl FnOnce(&Driver, StreamHandle, &mut ManuallyDrop<Vec<u8>>) -> Result<(), CudaError>,
    ) -> Result<Vec<u8>, CopyFailed> {
        // Leaks if the copy may still be running.
        let mut bytes = ManuallyDrop::new(bytes);
        let begun = self.stream.submit((), |driver, stream| call(driver, stream, &mut bytes));
        if let Err(error) = self.stream.synchronize() {
            tracing::error!("a copy of a GPU's memory for the software device may never end: {error}");
            return Err(CopyFailed::Unknown);
        }
        let bytes = ManuallyDrop::into_inner(bytes);
        match begun {
            Ok(_done) => Ok(bytes),
            Err(error) => {
                tracing::error!("a copy of a GPU's memory for the software device has failed: {error}");
                Err(CopyFailed::Ended)
            }
        }
    }
}

impl Copier for GpuCopier {
    unsafe fn read(&mut self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.run(bytes, |driver, stream, bytes| {
            let (target, size) = (bytes.as_mut_ptr().cast(), bytes.len());
            // SAFETY: cuMemcpyDtoHAsync wants as many bytes on both sides until the copy is done:
            // the caller of `read` promises them at `address`, and `run` keeps `bytes`, which
            // nobody else accesses.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target, address, size, stream) }
        })
    }

    unsafe fn write(&mut self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.run(bytes, |driver, stream, bytes| {
            let (source, size) = (bytes.as_ptr().cast(), bytes.len());
            // SAFETY: cuMemcpyHtoDAsync wants as many bytes on both sides until the copy is done:
            // the caller of `write` promises them at `address`, and `run` keeps `bytes`, which
            // nobody changes.
            unsafe { driver.cuMemcpyHtoDAsync_v2(address, source, size, stream) }
        })
    }
}
