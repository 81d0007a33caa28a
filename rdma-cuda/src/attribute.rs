//! Attributes of devices, by CUDA's numbers.

/// An attribute of a GPU (`CUdevice_attribute`). Any number is allowed: a driver answers
/// [`INVALID_VALUE`](crate::CudaError::INVALID_VALUE) for attributes that it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceAttribute(pub i32);

impl DeviceAttribute {
    /// `INTEGRATED`: 1 if the GPU shares the host's memory, as on Tegra.
    pub const INTEGRATED: Self = Self(18);
    /// `COMPUTE_CAPABILITY_MAJOR`
    pub const COMPUTE_CAPABILITY_MAJOR: Self = Self(75);
    /// `COMPUTE_CAPABILITY_MINOR`
    pub const COMPUTE_CAPABILITY_MINOR: Self = Self(76);
    /// `CAN_FLUSH_REMOTE_WRITES`
    pub const CAN_FLUSH_REMOTE_WRITES: Self = Self(98);
    /// `VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`: `cuMemCreate` and `cuMemMap` exist.
    pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: Self = Self(102);
    /// `HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`: memory can be shared by a descriptor.
    pub const POSIX_FILE_DESCRIPTOR_SUPPORTED: Self = Self(103);
    /// `GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`: memory of `cuMemCreate` can be registered.
    pub const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: Self = Self(110);
    /// `GPU_DIRECT_RDMA_SUPPORTED`: a NIC can access the GPU's memory.
    pub const GPU_DIRECT_RDMA_SUPPORTED: Self = Self(116);
    /// `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`: bit 0 says that `cuFlushGPUDirectRDMAWrites` works.
    pub const GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: Self = Self(117);
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING`: 0 for none, 100 for the owner's GPU, 200 for all GPUs.
    pub const GPU_DIRECT_RDMA_WRITES_ORDERING: Self = Self(118);
    /// `DMA_BUF_SUPPORTED`: memory can be exported as a dma-buf.
    pub const DMA_BUF_SUPPORTED: Self = Self(124);
    /// `HOST_ALLOC_DMA_BUF_SUPPORTED`: pinned host memory can be exported as a dma-buf.
    pub const HOST_ALLOC_DMA_BUF_SUPPORTED: Self = Self(146);
}
