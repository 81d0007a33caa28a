//! Streams: queues of work of a GPU.
//!
//! A stream accesses memory of its own GPU, except in copies between GPUs: another GPU's context
//! need not reach the memory.
//!
//! # Safety
//!
//! 1. What the work of a stream uses (memory, host functions) lives until the work is done: the
//!    stream parks it, with an event that is recorded after the work.
//! 2. If the driver does not say that work is done, what it uses leaks: an error of a query or a
//!    wait may leave the work running.
//! 3. Memory that a caller lends is given to the driver only in calls that return after their last
//!    access to it: `cuMemcpyHtoD` and `cuMemcpyDtoH`. Asynchronous copies own their host memory.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rdma::{Backoff, Pauses};

use crate::driver::{Driver, StreamHandle};
use crate::error::{CudaError, Error, Result};
use crate::event::Event;
use crate::gpu::Gpu;
use crate::host_function;
use crate::memory::{GpuSlice, PinnedBuffer};
use crate::order::Ready;
use crate::panics;
use crate::pending::Pending;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream, nor that for it.
const NON_BLOCKING: std::ffi::c_uint = 1;
/// The handle of the default stream.
const DEFAULT: StreamHandle = 0;
/// How long a drop waits for work: longer than work takes that will ever end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A queue of work of a GPU, done in order.
///
/// Work keeps the memory that it uses, so a buffer can be dropped at any time. Dropping a stream
/// waits for its work, for a minute at most: what work uses that takes longer leaks.
pub struct Stream {
    gpu: Gpu,
    handle: StreamHandle,
    parked: Mutex<VecDeque<Parked>>,
    /// How long `Drop` waits.
    patience: Duration,
}

/// The memory that queued work uses, and the event after the work.
struct Parked {
    event: Event,
    /// Only kept.
    _used: Box<dyn Send>,
}

impl Stream {
    /// Creates a stream, which does not wait for CUDA's default stream.
    ///
    /// # Errors
    ///
    /// If the driver cannot create one.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: cuStreamCreate requires space for a handle and a current context, which `with`
        // sets.
        gpu.with(|driver| unsafe { driver.cuStreamCreate(&raw mut handle, NON_BLOCKING) })?;
        Ok(Self { gpu: gpu.clone(), handle, parked: Mutex::default(), patience: PATIENCE })
    }

    /// The GPU that does the work.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The `CUstream`, to launch kernels with another crate. Pass what a kernel uses to
    /// [`keep`](Self::keep).
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }

    /// Copies elements of the host to the GPU. Returns when they have arrived.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; [`Error::OtherGpu`]; the error of work that failed.
    pub fn upload<T: Pod>(&self, to: &GpuSlice<T>, from: &[T]) -> Result<()> {
        self.check_gpu(to)?;
        check_lengths(from.len(), to.len())?;
        self.synchronize()?;
        let source = from.as_ptr().cast::<c_void>();
        // SAFETY: cuMemcpyHtoD requires as many bytes on both sides: the lengths are equal. (3)
        self.gpu.with(|driver| unsafe { driver.cuMemcpyHtoD_v2(to.address(), source, to.size()) })?;
        // The driver has taken the bytes, but they may still be on the way.
        // SAFETY: cuStreamSynchronize takes the default stream.
        Ok(self.gpu.with(|driver| unsafe { driver.cuStreamSynchronize(DEFAULT) })?)
    }

    /// Copies elements of the GPU to the host, after all work that the stream has.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; [`Error::OtherGpu`]; the error of work that failed.
    pub fn download<T: Pod>(&self, from: &GpuSlice<T>, to: &mut [T]) -> Result<()> {
        self.check_gpu(from)?;
        check_lengths(from.len(), to.len())?;
        self.synchronize()?;
        let target = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: cuMemcpyDtoH requires as many bytes on both sides: the lengths are equal. All
        // bytes are elements of `T`, which is plain old data. (3)
        Ok(self.gpu.with(|driver| unsafe { driver.cuMemcpyDtoH_v2(target, from.address(), from.size()) })?)
    }

    /// Begins a copy of pinned elements to the GPU.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; [`Error::OtherGpu`]; errors of the driver. The buffer is lost.
    pub fn upload_pinned<T: Pod>(&self, to: &GpuSlice<T>, from: PinnedBuffer<T>) -> Result<Pending<PinnedBuffer<T>>> {
        self.check_gpu(to)?;
        check_lengths(from.len(), to.len())?;
        let memory = from.memory();
        let event = self.submit((to.clone(), Arc::clone(&memory)), |driver, stream| {
            let source = memory.start().as_ptr().cast();
            // SAFETY: cuMemcpyHtoDAsync requires as many bytes on both sides until the copy is
            // done: the lengths are equal, and (1).
            unsafe { driver.cuMemcpyHtoDAsync_v2(to.address(), source, to.size(), stream) }
        })?;
        Ok(Pending::new(from, event))
    }

    /// Begins a copy of elements of the GPU to pinned memory.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; [`Error::OtherGpu`]; errors of the driver. The buffer is lost.
    pub fn download_pinned<T: Pod>(&self, from: &GpuSlice<T>, to: PinnedBuffer<T>) -> Result<Pending<PinnedBuffer<T>>> {
        self.check_gpu(from)?;
        check_lengths(from.len(), to.len())?;
        let memory = to.memory();
        let event = self.submit((from.clone(), Arc::clone(&memory)), |driver, stream| {
            let target = memory.start().as_ptr().cast();
            // SAFETY: cuMemcpyDtoHAsync requires as many bytes on both sides until the copy is
            // done: the lengths are equal, and (1). `Pending` gives nobody the elements before.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target, from.address(), from.size(), stream) }
        })?;
        Ok(Pending::new(to, event))
    }

    /// Begins a copy from a GPU to the same or another one: directly where
    /// [`Gpu::can_access`] says so, else by the driver through host memory.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; errors of the driver.
    pub fn copy<T: Pod>(&self, to: &GpuSlice<T>, from: &GpuSlice<T>) -> Result<()> {
        check_lengths(from.len(), to.len())?;
        self.submit((to.clone(), from.clone()), |driver, stream| {
            if to.gpu() == from.gpu() && to.gpu() == &self.gpu {
                // SAFETY: cuMemcpyDtoDAsync requires as many bytes on both sides until the copy is
                // done: the lengths are equal, and (1).
                return unsafe { driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), to.size(), stream) };
            }
            let (to_context, from_context) = (to.gpu().context()?, from.gpu().context()?);
            // SAFETY: cuMemcpyPeerAsync requires what cuMemcpyDtoDAsync requires, and the contexts
            // of both sides, which their GPUs retain.
            unsafe {
                let (to, from, size) = (to.address(), from.address(), to.size());
                driver.cuMemcpyPeerAsync(to, to_context, from, from_context, size, stream)
            }
        })?;
        Ok(())
    }

    /// Begins to set all bytes of a slice.
    ///
    /// # Errors
    ///
    /// [`Error::OtherGpu`]; errors of the driver.
    pub fn fill<T: Pod>(&self, slice: &GpuSlice<T>, byte: u8) -> Result<()> {
        self.check_gpu(slice)?;
        self.submit(slice.clone(), |driver, stream| {
            // SAFETY: cuMemsetD8Async requires memory of the size until the work is done: (1).
            unsafe { driver.cuMemsetD8Async(slice.address(), byte, slice.size(), stream) }
        })?;
        Ok(())
    }

    /// Calls a function on a thread of the driver when all work before is done, and holds back all
    /// work after until the function returns.
    ///
    /// The function must not call CUDA: this crate refuses with [`CudaError::NOT_PERMITTED`]. It
    /// must not wait for a thread that calls CUDA either: many of the driver's calls wait for all
    /// work of the GPU, and for those of other threads. It is not called, and leaks, if work before
    /// it fails.
    ///
    /// # Errors
    ///
    /// [`CudaError::NOT_FOUND`] with a driver before CUDA 10.0; errors of the driver.
    pub fn call_on_host(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let boxed: HostFunction = Box::new(Box::new(function));
        let data = Box::into_raw(boxed);
        self.submit((), |driver, stream| {
            // SAFETY: cuLaunchHostFunc requires a function that may be called with the data on
            // another thread: the data is a `HostFunction` that only this call gets.
            unsafe { driver.cuLaunchHostFunc(stream, call_host_function, data.cast()) }
        })?;
        Ok(())
    }

    /// Keeps a value until all work that the stream has now is done.
    ///
    /// # Errors
    ///
    /// If the driver cannot say when the work is done. The value leaks.
    pub fn keep(&self, value: impl Send + 'static) -> Result<()> {
        self.submit(value, |_, _| Ok(()))?;
        Ok(())
    }

    /// Marks the work that the stream has now.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.gpu)?;
        self.record_in(&event)?;
        Ok(event)
    }

    fn record_in(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: cuEventRecord requires an event and a stream of one context that are not
        // destroyed: both are of the primary context of this GPU.
        self.gpu.with(|driver| unsafe { driver.cuEventRecord(event.handle(), self.handle) })
    }

    /// Holds back the work after this call until an event, of any stream, is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.submit(event.clone(), |driver, stream| {
            // SAFETY: cuStreamWaitEvent requires a stream and an event that are not destroyed.
            unsafe { driver.cuStreamWaitEvent(stream, event.handle(), 0) }
        })?;
        Ok(())
    }

    /// Waits until all work that the stream has now is done, after which a NIC may read a slice.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    pub fn ready<S>(&self, slice: S) -> Result<Ready<S>> {
        self.ready_later(slice)?.wait()
    }

    /// A slice that a NIC may read once all work that the stream has now is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn ready_later<S>(&self, slice: S) -> Result<Pending<Ready<S>>> {
        Ok(self.record()?.ready(slice))
    }

    /// Whether all work is done.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: is_done requires a stream of the GPU that is not destroyed: `drop` destroys it.
        unsafe { is_done(&self.gpu, self.handle) }
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        self.wait()?;
        self.release();
        Ok(())
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: cuStreamSynchronize requires a stream that is not destroyed.
        self.gpu.with(|driver| unsafe { driver.cuStreamSynchronize(self.handle) })
    }

    /// Requires a slice of this stream's GPU: the context of another GPU need not reach the memory.
    pub(crate) fn check_gpu<T: Pod>(&self, slice: &GpuSlice<T>) -> Result<()> {
        if slice.gpu() == &self.gpu { Ok(()) } else { Err(Error::OtherGpu) }
    }

    /// Gives work to the stream, and parks what it uses until the returned event.
    pub(crate) fn submit(
        &self,
        used: impl Send + 'static,
        call: impl FnOnce(&Driver, StreamHandle) -> Result<(), CudaError>,
    ) -> Result<Event> {
        self.release();
        let event = Event::new(&self.gpu)?;
        let used = ManuallyDrop::new(used);
        let called = self.gpu.with(|driver| call(driver, self.handle));
        // A call that failed may have given its work to the stream all the same. If the event is
        // not recorded, `used` leaks. (2)
        self.record_in(&event)?;
        let parked = Parked { event: event.clone(), _used: Box::new(ManuallyDrop::into_inner(used)) };
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).push_back(parked);
        called?;
        Ok(event)
    }

    /// Drops what work used that is done.
    fn release(&self) {
        let lock = || self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(event) = lock().front().map(|first| first.event.clone()) else { return };
            // Outside the lock, because the driver's errors are logged.
            if !matches!(event.is_done(), Ok(true)) {
                return;
            }
            let mut parked = lock();
            // Another thread may have taken it meanwhile.
            let is_there = parked.front().is_some_and(|first| first.event == event);
            let first = if is_there { parked.pop_front() } else { None };
            drop(parked);
            // What a caller gave to `keep` is dropped outside the lock, too.
            drop_contained(first);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let parked = std::mem::take(self.parked.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Leaks unless the work is done, even where the subscriber of a log message panics. (2)
        let parked = ManuallyDrop::new(parked);
        // SAFETY: wait_at_most requires a stream of the GPU that is not destroyed: it is below.
        match unsafe { wait_at_most(&self.gpu, self.handle, self.patience) } {
            // Each alone, because a second panic would end the process.
            Ok(true) => ManuallyDrop::into_inner(parked).into_iter().for_each(drop_contained),
            Ok(false) => tracing::warn!(
                "the work of a stream takes longer than {} s, and the memory that it uses leaks",
                self.patience.as_secs()
            ),
            Err(error) => {
                tracing::warn!("the work of a stream has failed, and the memory that it uses leaks: {error}");
            }
        }
        // SAFETY: cuStreamDestroy requires a stream that nobody uses; it returns at once, and the
        // driver finishes the work.
        if let Err(error) = self.gpu.with(|driver| unsafe { driver.cuStreamDestroy_v2(self.handle) }) {
            tracing::warn!("a stream leaks: {error}");
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x} of {:?})", self.handle, self.gpu)
    }
}

/// Whether all work of a stream is done.
///
/// # Safety
///
/// `stream` is a stream of the GPU's primary context that nobody destroys during the call.
unsafe fn is_done(gpu: &Gpu, stream: StreamHandle) -> Result<bool> {
    // SAFETY: cuStreamQuery requires a stream that is not destroyed: the contract.
    match gpu.with(|driver| unsafe { driver.cuStreamQuery(stream) }) {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CudaError::NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until all work of a stream is done, for some time at most; whether it is done.
///
/// # Safety
///
/// As for [`is_done`].
pub(crate) unsafe fn wait_at_most(gpu: &Gpu, stream: StreamHandle, limit: Duration) -> Result<bool> {
    let (start, mut pauses) = (Instant::now(), Pauses::default());
    // SAFETY: is_done has the same contract.
    while !unsafe { is_done(gpu, stream) }? {
        if start.elapsed() >= limit {
            return Ok(false);
        }
        Backoff::SLEEP.pause(&mut pauses, || start.elapsed()).take();
    }
    Ok(true)
}

/// Drops a value of the application, whose panic must not reach who happens to release it.
fn drop_contained(value: impl Sized) {
    if !panics::contain(|| drop(value)) {
        panics::contain(|| tracing::error!("a value that a stream kept has panicked when it was dropped"));
    }
}

fn check_lengths(from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Error::LengthMismatch { from, to }) }
}

/// A function for `cuLaunchHostFunc`: the outer box has a thin pointer.
type HostFunction = Box<Box<dyn FnOnce() + Send>>;

/// # Safety
///
/// `data` is the pointer of a [`HostFunction`] that this call takes over.
unsafe extern "C" fn call_host_function(data: *mut c_void) {
    let _no_calls = host_function::refuse_calls();
    // SAFETY: from_raw requires a pointer of into_raw that nobody else takes over, as this
    // function.
    let function: HostFunction = unsafe { Box::from_raw(data.cast()) };
    // A panic must not reach the driver's frames, that of a log subscriber neither.
    if !panics::contain(function) {
        panics::contain(|| tracing::error!("a host function on a stream has panicked"));
    }
}

#[cfg(test)]
mod tests;
