//! Slices of [cudarc](https://docs.rs/cudarc), in both directions and without a copy.
//!
//! [`import`] makes a `CudaSlice` a [`GpuSlice`], and [`Lent`] is a [`GpuSlice`] as a `CudaSlice`.
//! Both wait for the work of the side that gives the memory.
//!
//! cudarc allocates from a memory pool where the GPU has one, and a NIC cannot access the memory of
//! a pool: [`GpuRegion::register`](crate::GpuRegion::register) says so ([`Cause::Pool`]) or stages
//! it. To avoid that, allocate a [`GpuBuffer`](crate::GpuBuffer) and lend it to cudarc.
//!
//! cudarc loads the driver library by itself, as `libcuda.so`, and panics if there is none. Both
//! crates must load the same library: set no `RDMA_LIBCUDA_PATH`.
//!
//! # Safety
//!
//! 1. A `CudaSlice` owns its memory until it is dropped. [`import`] takes it by value; [`Lent`]
//!    never drops one nor hands one out by value or `&mut`, since cudarc would free this crate's
//!    memory.
//! 2. Handles of cudarc are valid for this crate if both use the same context: compared by
//!    `check`.
//!
//! [`Cause::Pool`]: crate::Cause::Pool

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ::cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtrMut, DriverError};
use bytemuck::Pod;

use crate::gpu::Gpu;
use crate::memory::{DeviceMemory, GpuSlice};
use crate::order::Ready;
use crate::stream::{PATIENCE, wait_at_most};

/// Why a slice cannot be exchanged with cudarc.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudarcError {
    /// cudarc's context is not the primary context of the GPU.
    #[error(
        "cudarc's context is not the primary context of GPU {wanted}: make it by CudaContext::new({wanted}), with one \
         libcuda for both crates"
    )]
    Context {
        /// The number of the GPU.
        wanted: i32,
    },
    /// The driver refused a call of cudarc, or its work failed.
    #[error("cudarc: {0}")]
    Driver(#[from] DriverError),
}

/// Makes a slice of cudarc one of this crate, which keeps its memory. Waits for the work of cudarc
/// on the slice.
///
/// # Errors
///
/// With the slice: [`CudarcError`].
pub fn import<T: Pod>(mut slice: CudaSlice<T>, gpu: &Gpu) -> Result<Ready<GpuSlice<T>>, (CudarcError, CudaSlice<T>)> {
    let ready = check(slice.context(), gpu).and_then(|()| Ok(settle(&mut slice)?));
    match ready {
        Ok(address) => {
            let imported = Imported { address, gpu: gpu.clone(), slice };
            Ok(Ready::new(GpuSlice::new(Arc::new(imported))))
        }
        Err(error) => Err((error, slice)),
    }
}

/// Waits for cudarc's work on a slice, and returns the slice's address.
fn settle<T>(slice: &mut CudaSlice<T>) -> Result<u64, DriverError> {
    let (stream, address) = join(slice)?;
    stream.synchronize()?;
    Ok(address)
}

/// Makes the stream of a slice wait for the work of other streams on it that cudarc tracks. Returns
/// the stream and the slice's address.
fn join<T>(slice: &mut CudaSlice<T>) -> Result<(Arc<CudaStream>, u64), DriverError> {
    let stream = Arc::clone(slice.stream());
    let (address, tracked) = slice.device_ptr_mut(&stream);
    drop(tracked);
    // cudarc records an error of these calls, and returns it here.
    stream.context().check_err()?;
    Ok((stream, address))
}

fn check(context: &CudaContext, gpu: &Gpu) -> Result<(), CudarcError> {
    let is_same = gpu.context().is_ok_and(|handle| handle == context.cu_ctx().addr());
    if is_same { Ok(()) } else { Err(CudarcError::Context { wanted: gpu.ordinal() }) }
}

/// Memory of a slice of cudarc.
struct Imported<T> {
    address: u64,
    gpu: Gpu,
    slice: CudaSlice<T>,
}

// SAFETY: (1) and (2) of the contract: cudarc keeps the memory, which the GPU's primary context may
// access, until the slice is dropped with the owner. (3) The fields never change. (4) cudarc gives
// references to host memory alone.
unsafe impl<T: Pod> DeviceMemory for Imported<T> {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> usize {
        self.slice.num_bytes()
    }

    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl<T> Drop for Imported<T> {
    fn drop(&mut self) {
        // cudarc frees the slice next, which may need the context of this thread. It records
        // errors.
        let _recorded = self.slice.context().bind_to_thread();
    }
}

impl<T> fmt::Debug for Imported<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of cudarc at {:#x} of {:?}", self.slice.num_bytes(), self.address, self.gpu)
    }
}

/// A slice lent to cudarc, as a `CudaSlice`.
///
/// [`finish`](Self::finish) gives the slice back when cudarc's work on it is done. Dropping waits
/// too, for a minute at most: the memory leaks if the work takes longer.
///
/// # Examples
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use rdma_cuda::interop::cudarc::Lent;
/// use rdma_cuda::{Gpu, GpuBuffer, Ready};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let buffer = GpuBuffer::<f32>::new(&Gpu::new(0)?, 4)?;
/// let mut lent = Lent::new(Ready::assume(buffer.slice()), &stream)?;
/// stream.memcpy_htod(&[1.0, 2.0, 3.0, 4.0], &mut lent.view_mut())?;
/// let ready = lent.finish()?;
/// # let _ = ready; Ok(()) }
/// ```
pub struct Lent<T: Pod> {
    /// Taken out by `take` alone.
    lent: ManuallyDrop<CudaSlice<T>>,
    /// Leaks if cudarc's work may still use the memory.
    slice: ManuallyDrop<GpuSlice<T>>,
    /// How long `Drop` waits.
    patience: Duration,
}

impl<T: Pod> Lent<T> {
    /// Lends a slice to cudarc, whose work on it is by default that of `stream`.
    ///
    /// # Errors
    ///
    /// [`CudarcError`]
    ///
    /// # Panics
    ///
    /// If cudarc cannot create events.
    pub fn new(slice: Ready<GpuSlice<T>>, stream: &Arc<CudaStream>) -> Result<Self, CudarcError> {
        let slice = slice.into_inner();
        check(stream.context(), slice.gpu())?;
        stream.context().bind_to_thread()?;
        // SAFETY: upgrade_device_ptr requires memory for the elements, with valid ones: a GpuSlice
        // has as many, any bytes are valid ones, and it is kept until cudarc's work is done. (1, 2)
        let lent = unsafe { stream.upgrade_device_ptr(slice.address(), slice.len()) };
        Ok(Self { lent: ManuallyDrop::new(lent), slice: ManuallyDrop::new(slice), patience: PATIENCE })
    }

    /// The elements for work of cudarc that changes them.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.lent.as_view_mut()
    }

    /// Waits for cudarc's work on the slice, and returns the slice.
    ///
    /// # Errors
    ///
    /// The error of work that failed; the memory leaks.
    pub fn finish(self) -> Result<Ready<GpuSlice<T>>, CudarcError> {
        let mut this = ManuallyDrop::new(self);
        let done = settle(&mut this.lent);
        // SAFETY: take requires that this value is not used again: `this` is not dropped.
        let slice = unsafe { this.take() };
        done?;
        Ok(Ready::new(ManuallyDrop::into_inner(slice)))
    }

    /// Ends cudarc's part, and takes the slice, which leaks unless cudarc's work is done.
    ///
    /// # Safety
    ///
    /// This is the last call on this value.
    unsafe fn take(&mut self) -> ManuallyDrop<GpuSlice<T>> {
        // SAFETY: take requires that the value is not used again: the caller's promise. `leak`
        // frees cudarc's part and not the memory (1), and does not wait: it destroys events, and a
        // stream that nobody else has, whose work the driver finishes.
        unsafe { ManuallyDrop::take(&mut self.lent) }.leak();
        // SAFETY: take requires that the value is not used again: the caller's promise.
        ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.slice) })
    }

    /// Waits for cudarc's work on the slice, as long as a drop waits; whether it is done.
    fn wait(&mut self) -> Result<bool, Box<dyn Error>> {
        let (stream, _) = join(&mut self.lent)?;
        // SAFETY: wait_at_most requires a stream of the GPU's primary context that is not
        // destroyed: `stream` keeps it, and `new` has compared the contexts. (2)
        Ok(unsafe { wait_at_most(self.slice.gpu(), stream.cu_stream().addr(), self.patience) }?)
    }
}

impl<T: Pod> Deref for Lent<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.lent
    }
}

impl<T: Pod> Drop for Lent<T> {
    fn drop(&mut self) {
        let done = self.wait();
        // SAFETY: take requires that this value is not used again: nothing follows `drop`.
        let slice = unsafe { self.take() };
        // The slice leaks even where the subscriber of a log message panics.
        match done {
            Ok(true) => drop(ManuallyDrop::into_inner(slice)),
            Ok(false) => tracing::warn!(
                "cudarc's work on memory that is lent to it takes longer than {} s, and the memory leaks",
                self.patience.as_secs()
            ),
            Err(error) => tracing::warn!("memory that is lent to cudarc leaks, since its work has failed: {error}"),
        }
    }
}

impl<T: Pod> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({:?})", self.slice)
    }
}

#[cfg(test)]
mod tests;
