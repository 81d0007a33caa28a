//! The methods that make a NIC's writes visible to a GPU.

use std::fmt;

/// The method that makes a NIC's writes visible to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushMethod {
    /// Nothing: the GPU sees writes in order (from Hopper on).
    None,
    /// `cuFlushGPUDirectRDMAWrites`.
    Driver,
    /// A read of the memory by the NIC that wrote it, which pushes its writes.
    ReadBack,
}

impl FlushMethod {
    /// The method for a GPU whose memory is mapped in the default way, by the values of its
    /// attributes `GPU_DIRECT_RDMA_WRITES_ORDERING` and `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`.
    pub(crate) fn of(ordering: i32, options: i32) -> Self {
        /// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`
        const OWNER: i32 = 100;
        /// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`
        const HOST: i32 = 1;
        if ordering >= OWNER {
            Self::None
        } else if options & HOST != 0 {
            Self::Driver
        } else {
            Self::ReadBack
        }
    }
}

impl fmt::Display for FlushMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Driver => "cuFlushGPUDirectRDMAWrites",
            Self::ReadBack => "read back by the NIC",
        })
    }
}
