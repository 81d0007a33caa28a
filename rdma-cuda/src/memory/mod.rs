//! Memory: of GPUs, and of the host for copies from and to GPUs.

mod buffer;
mod dma_buf;
mod pinned;
mod slice;
mod sync_memops;
mod vmm;

use std::fmt::Debug;

use crate::gpu::Gpu;

pub use buffer::{AllocationKind, GpuBuffer};
pub use dma_buf::{DmaBuf, MemoryType, PointerAttributes};
pub use pinned::PinnedBuffer;
pub(crate) use pinned::PinnedMemory;
pub use slice::GpuSlice;
pub use sync_memops::SyncMemops;

/// An owner of memory of a GPU: the one contract between this crate and memory that others have
/// allocated.
///
/// # Safety
///
/// 1. The bytes from [`address`](Self::address) on, [`size`](Self::size) of them, are memory of
///    [`gpu`](Self::gpu), which its primary context may read and write.
/// 2. Until the owner is dropped, they stay mapped to the same physical memory, and are not freed
///    or returned to a pool.
/// 3. The three methods always return the same values.
/// 4. No Rust reference to the bytes exists. Kernels, copies and NICs may change them at any time.
pub unsafe trait DeviceMemory: Send + Sync + Debug + 'static {
    /// The first byte's device address.
    fn address(&self) -> u64;

    /// The number of bytes.
    fn size(&self) -> usize;

    /// The GPU that has the memory.
    fn gpu(&self) -> &Gpu;
}

/// The size in bytes of `len` elements of `T`, if it is one that can be allocated.
fn size_of_elements<T>(len: usize) -> Result<usize, crate::Error> {
    let size = len.checked_mul(size_of::<T>()).filter(|&size| size > 0 && isize::try_from(size).is_ok());
    size.ok_or(crate::Error::BufferSize { len, size: size_of::<T>() })
}

#[cfg(test)]
mod tests;
