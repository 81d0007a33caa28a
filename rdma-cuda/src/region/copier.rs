//! The copier of a GPU's memory for the software device, which cannot access that memory.
//!
//! Each copy runs on a stream of its own, which waits neither for kernels nor for other copies.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma::{Copier, CopierThreads, CopyFailed};

use crate::driver::{DeviceHandle, Driver, StreamHandle};
use crate::error::{CudaError, Error};
use crate::gpu::Gpu;
use crate::stream::Stream;

/// The threads that copy for the regions that exist, by GPU and driver.
static THREADS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    /// The address of the driver, which is never unloaded.
    driver: usize,
    device: DeviceHandle,
    threads: Weak<CopierThreads>,
}

/// The threads that copy the memory of a GPU.
pub(super) fn of(gpu: &Gpu) -> Result<Arc<CopierThreads>, Error> {
    let (driver, device) = (std::ptr::from_ref(gpu.driver()).addr(), gpu.device());
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = threads.iter().find(|entry| entry.driver == driver && entry.device == device);
    if let Some(found) = found.and_then(|entry| entry.threads.upgrade()) {
        return Ok(found);
    }
    let idle = Mutex::new(vec![Stream::new(gpu)?]);
    let started = Arc::new(CopierThreads::start(GpuCopier { gpu: gpu.clone(), idle })?);
    threads.retain(|entry| entry.threads.strong_count() > 0);
    threads.push(Entry { driver, device, threads: Arc::downgrade(&started) });
    Ok(started)
}

struct GpuCopier {
    gpu: Gpu,
    /// The streams that no copy uses.
    idle: Mutex<Vec<Stream>>,
}

impl GpuCopier {
    /// Runs a copy from or to `bytes`, on a stream that no other copy uses.
    fn run(
        &self,
        bytes: Vec<u8>,
        call: impl FnOnce(&Driver, StreamHandle, &mut ManuallyDrop<Vec<u8>>) -> Result<(), CudaError>,
    ) -> Result<Vec<u8>, CopyFailed> {
        // Its own statement: the lock must not be held while a stream is made, or an error logged.
        let idle = self.idle().pop();
        let stream = idle.map_or_else(|| Stream::new(&self.gpu), Ok).map_err(|error| {
            tracing::error!("a copy of a GPU's memory for the software device has no stream: {error}");
            CopyFailed::Ended
        })?;
        // Both leak if the copy may still be running: dropping a stream waits for its work.
        let (stream, mut bytes) = (ManuallyDrop::new(stream), ManuallyDrop::new(bytes));
        let begun = stream.submit((), |driver, stream| call(driver, stream, &mut bytes));
        if let Err(error) = stream.synchronize() {
            tracing::error!("a copy of a GPU's memory for the software device may never end: {error}");
            return Err(CopyFailed::Unknown);
        }
        self.idle().push(ManuallyDrop::into_inner(stream));
        let bytes = ManuallyDrop::into_inner(bytes);
        match begun {
            Ok(_done) => Ok(bytes),
            Err(error) => {
                tracing::error!("a copy of a GPU's memory for the software device has failed: {error}");
                Err(CopyFailed::Ended)
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Copier for GpuCopier {
    unsafe fn read(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.run(bytes, |driver, stream, bytes| {
            let (target, size) = (bytes.as_mut_ptr().cast(), bytes.len());
            // SAFETY: cuMemcpyDtoHAsync requires as many bytes on both sides until the copy is
            // done: the caller of `read` promises them at `address`, and `run` keeps `bytes`, which
            // nobody else accesses.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target, address, size, stream) }
        })
    }

    unsafe fn write(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.run(bytes, |driver, stream, bytes| {
            let (source, size) = (bytes.as_ptr().cast(), bytes.len());
            // SAFETY: cuMemcpyHtoDAsync requires as many bytes on both sides until the copy is
            // done: the caller of `write` promises them at `address`, and `run` keeps `bytes`,
            // which nobody changes.
            unsafe { driver.cuMemcpyHtoDAsync_v2(address, source, size, stream) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rdma_cuda_stand_in::Control;

    use super::*;
    use crate::{GpuBuffer, testing};

    #[test]
    fn no_log_message_of_a_copy_comes_under_a_lock() {
        let gpu = testing::stand_in().gpu(0).unwrap();
        let buffer = GpuBuffer::<u8>::new(&gpu, 64).unwrap();
        let copier = Arc::new(GpuCopier { gpu, idle: Mutex::default() });
        let (used, logged) = (Arc::clone(&copier), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&logged);
        let subscriber = rdma_test_support::OnEvent(move |_: &tracing::Event<'_>| {
            assert!(used.idle.try_lock().is_ok(), "a subscriber that waits for another copy would wait for ever");
            count.fetch_add(1, Ordering::Relaxed);
        });
        Control::new().fail_next("cuStreamCreate", 9999);
        let read = tracing::subscriber::with_default(subscriber, || {
            // SAFETY: read requires as much memory of the GPU at the address: the buffer's.
            unsafe { copier.read(buffer.slice().address(), vec![0; 64]) }
        });
        assert_eq!((read, logged.load(Ordering::Relaxed)), (Err(CopyFailed::Ended), 1));
    }
}
