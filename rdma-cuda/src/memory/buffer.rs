//! Memory of a GPU that this crate allocates.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytemuck::Pod;

use crate::attribute::DeviceAttribute;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::vmm::Mapped;
use crate::memory::{DeviceMemory, GpuSlice, size_of_elements};

/// Memory of a GPU for elements of type `T`, of a kind that a NIC can access if the GPU has one.
///
/// The memory is freed when the buffer, its slices, and the work on streams that uses them are
/// gone. A new buffer holds unspecified bytes.
///
/// Elements are plain old data, so bytes that a NIC or a kernel has written in part are wrong data
/// and no undefined behaviour.
pub struct GpuBuffer<T> {
    allocation: Arc<Allocation>,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

/// How memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationKind {
    /// By `cuMemAlloc`.
    Plain,
    /// By `cuMemCreate`, with `gpuDirectRDMACapable` where the GPU has it.
    Vmm,
}

impl<T: Pod> GpuBuffer<T> {
    /// Allocates memory for `len` elements.
    ///
    /// # Errors
    ///
    /// [`Error::BufferSize`] for 0 bytes;
    /// [`CudaError::OUT_OF_MEMORY`](crate::CudaError::OUT_OF_MEMORY).
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        Ok(Self::of(Allocation::new(gpu, size_of_elements::<T>(len)?)?, len))
    }

    /// Allocates memory that can be shared with other processes of this host.
    ///
    /// # Errors
    ///
    /// As [`Self::new`]; [`CudaError::NOT_SUPPORTED`](crate::CudaError::NOT_SUPPORTED) if the GPU
    /// lacks [`DeviceAttribute::POSIX_FILE_DESCRIPTOR_SUPPORTED`].
    pub fn new_shareable(gpu: &Gpu, len: usize) -> Result<Self> {
        let size = size_of_elements::<T>(len)?;
        let source = Source::Shareable(Mapped::new(gpu, size, true)?);
        Ok(Self::of(Allocation { size, source }, len))
    }

    /// Maps memory that [`Self::share`] of this or another process has shared. Both see what the
    /// other writes.
    ///
    /// # Errors
    ///
    /// [`Error::OtherGpu`] if the memory is of another GPU; errors of the driver, if the descriptor
    /// is no such memory, or `len` needs more memory.
    pub fn import(gpu: &Gpu, descriptor: BorrowedFd<'_>, len: usize) -> Result<Self> {
        let size = size_of_elements::<T>(len)?;
        let source = Source::Shareable(Mapped::import(gpu, size, descriptor)?);
        Ok(Self::of(Allocation { size, source }, len))
    }

    fn of(allocation: Allocation, len: usize) -> Self {
        Self { allocation: Arc::new(allocation), len, elements: PhantomData }
    }

    /// A descriptor of the memory, to send to another process, which imports it with the same
    /// length. The memory lives until both processes have dropped it.
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if [`Self::new_shareable`] has not made the buffer.
    pub fn share(&self) -> Result<OwnedFd> {
        match &self.allocation.source {
            Source::Shareable(mapped) => mapped.share(),
            Source::Plain(_) | Source::Vmm(_) => Err(Error::NotShareable),
        }
    }

    /// The number of elements, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The GPU that has the memory.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        self.allocation.gpu()
    }

    /// How the memory was allocated.
    #[must_use]
    pub fn kind(&self) -> AllocationKind {
        match &self.allocation.source {
            Source::Plain(_) => AllocationKind::Plain,
            Source::Vmm(_) | Source::Shareable(_) => AllocationKind::Vmm,
        }
    }

    /// The whole buffer as a slice, which keeps the memory.
    #[must_use]
    pub fn slice(&self) -> GpuSlice<T> {
        GpuSlice::new(self.memory())
    }

    /// The owner of the memory.
    #[must_use]
    pub fn memory(&self) -> Arc<dyn DeviceMemory> {
        self.allocation.clone()
    }
}

impl<T> fmt::Debug for GpuBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuBuffer({} elements, {:?})", self.len, self.allocation)
    }
}

/// Owned memory of a GPU; freed when dropped.
struct Allocation {
    /// The size that the program asked for: the memory may be larger.
    size: usize,
    source: Source,
}

enum Source {
    Plain(Plain),
    Vmm(Mapped),
    /// Memory that the driver may export by a descriptor.
    Shareable(Mapped),
}

impl Allocation {
    fn new(gpu: &Gpu, size: usize) -> Result<Self> {
        let source = if gpu.has(DeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) {
            Source::Vmm(Mapped::new(gpu, size, false)?)
        } else {
            Source::Plain(Plain::new(gpu, size)?)
        };
        Ok(Self { size, source })
    }
}

// SAFETY: (1) the bytes are those of `cuMemAlloc`, or of a mapping of at least `size` bytes. (2)
// both are freed by `Drop` only, (3) and their fields never change. (4) No code makes a reference
// of a device address.
unsafe impl DeviceMemory for Allocation {
    fn address(&self) -> u64 {
        match &self.source {
            Source::Plain(plain) => plain.address,
            Source::Vmm(mapped) | Source::Shareable(mapped) => mapped.address(),
        }
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gpu(&self) -> &Gpu {
        match &self.source {
            Source::Plain(plain) => &plain.gpu,
            Source::Vmm(mapped) | Source::Shareable(mapped) => mapped.gpu(),
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} of {:?}", self.size, self.address(), self.gpu())
    }
}

/// Memory of `cuMemAlloc`.
struct Plain {
    gpu: Gpu,
    address: u64,
}

impl Plain {
    fn new(gpu: &Gpu, size: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: cuMemAlloc requires space for an address and a current context, which `with`
        // sets.
        gpu.with(|driver| unsafe { driver.cuMemAlloc_v2(&raw mut address, size) })?;
        Ok(Self { gpu: gpu.clone(), address })
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: cuMemFree requires an address of cuMemAlloc that nobody uses: every slice, and
        // every work item that this crate gives to a stream, has an `Arc` of the allocation.
        if let Err(error) = self.gpu.with(|driver| unsafe { driver.cuMemFree_v2(self.address) }) {
            tracing::warn!("memory of a GPU leaks: {error}");
        }
    }
}
