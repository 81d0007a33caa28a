//! Slices of GPU memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::DeviceMemory;

/// A part of a GPU's memory, as elements of type `T`. It keeps the memory; clones are the same
/// part.
///
/// There is no `&[T]` of it: the processor cannot read a GPU's memory. Copies on a
/// [`Stream`](crate::Stream) bring elements from and to the host.
pub struct GpuSlice<T> {
    memory: Arc<dyn DeviceMemory>,
    /// The first byte, in `memory`.
    offset: usize,
    /// Elements; `offset` and they lie in `memory`.
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T: Pod> GpuSlice<T> {
    /// All whole elements in memory.
    #[must_use]
    pub fn new(memory: Arc<dyn DeviceMemory>) -> Self {
        let len = memory.size().checked_div(size_of::<T>()).unwrap_or(0);
        Self { memory, offset: 0, len, elements: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The device address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// The GPU that has the memory.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        self.memory.gpu()
    }

    /// The owner of the memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn DeviceMemory> {
        &self.memory
    }

    /// A part of the slice.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.len),
        };
        let (start, end) = (start.unwrap_or(usize::MAX), end.unwrap_or(usize::MAX));
        if start > end || end > self.len {
            return Err(Error::OutOfBounds { start, end, len: self.len });
        }
        let offset = self.offset + start * size_of::<T>();
        Ok(Self { memory: Arc::clone(&self.memory), offset, len: end - start, elements: PhantomData })
    }

    /// The same memory as bytes.
    #[must_use]
    pub fn bytes(&self) -> GpuSlice<u8> {
        let (memory, len) = (Arc::clone(&self.memory), self.size());
        GpuSlice { memory, offset: self.offset, len, elements: PhantomData }
    }
}

impl<T> Clone for GpuSlice<T> {
    fn clone(&self) -> Self {
        let Self { memory, offset, len, .. } = self;
        Self { memory: Arc::clone(memory), offset: *offset, len: *len, elements: PhantomData }
    }
}

impl<T> fmt::Debug for GpuSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuSlice({} elements from byte {} of {:?})", self.len, self.offset, self.memory)
    }
}
