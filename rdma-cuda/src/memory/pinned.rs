//! Pinned host memory, for asynchronous copies.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use rdma::{Host, MemoryOwner};

use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::size_of_elements;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts of the process.
const PORTABLE: std::ffi::c_uint = 1;

/// Host memory that a GPU's copy engine accesses directly (`cuMemHostAlloc`).
///
/// A copy takes the buffer by value and gives it back when it is done, so nobody accesses the
/// elements during the copy.
pub struct PinnedBuffer<T> {
    memory: Arc<PinnedMemory>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates memory for `len` elements, which are zeroed.
    ///
    /// # Errors
    ///
    /// [`Error::BufferSize`](crate::Error::BufferSize) for 0 bytes;
    /// [`CudaError::OUT_OF_MEMORY`](crate::CudaError::OUT_OF_MEMORY).
    ///
    /// # Panics
    ///
    /// If the driver returns memory that is not aligned for `T`, which begins at a page.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let memory = PinnedMemory::new(gpu, size_of_elements::<T>(len)?)?;
        assert!(memory.start.cast::<T>().is_aligned(), "cuMemHostAlloc: {:?} is not aligned", memory.start);
        Ok(Self { memory: Arc::new(memory), len, elements: PhantomData })
    }

    /// The memory, to keep during a copy. It gives no access to the elements.
    pub(crate) fn memory(&self) -> Arc<PinnedMemory> {
        Arc::clone(&self.memory)
    }
}

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: the buffer holds a pointer, not a reference, so moving it asserts nothing;
// cuMemHostAlloc's memory stays in place until it is freed, and `new` has zeroed it. The parts are
// the buffer itself. Dropping them frees the memory, unless a copy still keeps it.
unsafe impl MemoryOwner for PinnedBuffer<u8> {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.memory.start, self.len, self)
    }

    unsafe fn from_parts(_address: NonNull<u8>, _len: usize, parts: Self) -> Self {
        parts
    }
}

impl<T> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: from_raw_parts requires `len` initialised elements that nobody changes: `new` has
        // checked size and alignment, the memory is zeroed and `T` plain old data (`new` is the
        // only constructor), and only the holder of the buffer changes elements. A copy has the
        // buffer by value until it is done.
        unsafe { std::slice::from_raw_parts(self.memory.start.cast().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: from_raw_parts_mut requires what from_raw_parts requires, and that nobody else
        // reads: the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.cast().as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} elements at {:?})", self.len, self.memory.start)
    }
}

/// Owned memory of `cuMemHostAlloc`; freed when dropped.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    gpu: Gpu,
    start: NonNull<u8>,
}

// SAFETY: the type gives no access to the memory but its address, and the memory belongs to no
// thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    fn new(gpu: &Gpu, size: usize) -> Result<Self> {
        let mut start = std::ptr::null_mut();
        // SAFETY: cuMemHostAlloc requires space for a pointer and a current context, which `with`
        // sets.
        gpu.with(|driver| unsafe { driver.cuMemHostAlloc(&raw mut start, size, PORTABLE) })?;
        let start = NonNull::new(start.cast::<u8>()).expect("cuMemHostAlloc succeeded without memory");
        // SAFETY: write_bytes requires space for `size` bytes, which cuMemHostAlloc has allocated.
        unsafe { start.write_bytes(0, size) };
        Ok(Self { gpu: gpu.clone(), start })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: cuMemFreeHost requires memory of cuMemHostAlloc that nobody uses: the buffer, and
        // each copy until it is done, have an `Arc` of it.
        if let Err(error) = self.gpu.with(|driver| unsafe { driver.cuMemFreeHost(self.start.as_ptr().cast()) }) {
            tracing::warn!("pinned memory leaks: {error}");
        }
    }
}
