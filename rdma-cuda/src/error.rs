//! Errors. A result of CUDA stays the integer that the driver returned, because a newer driver may
//! return codes that this crate does not know.

use std::fmt;

use crate::driver::NoDriver;
use crate::gpu::GpuName;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call of CUDA's driver failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaError {
    code: i32,
    name: &'static str,
    description: &'static str,
    call: &'static str,
}

impl CudaError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUDA_ERROR_NO_DEVICE`
    pub const NO_DEVICE: i32 = 100;
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub const INVALID_DEVICE: i32 = 101;
    /// `CUDA_ERROR_NOT_FOUND`
    pub const NOT_FOUND: i32 = 500;
    /// `CUDA_ERROR_NOT_READY`
    pub const NOT_READY: i32 = 600;
    /// `CUDA_ERROR_NOT_PERMITTED`
    pub const NOT_PERMITTED: i32 = 800;
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: i32 = 801;

    pub(crate) fn new(call: &'static str, code: i32, name: &'static str, description: &'static str) -> Self {
        Self { code, name, description, call }
    }

    /// The error of a function that the loaded driver lacks.
    pub(crate) fn missing(call: &'static str, since: &'static str) -> Self {
        Self::new(call, Self::NOT_FOUND, "CUDA_ERROR_NOT_FOUND", since)
    }

    /// The driver's code, a `CUresult`; it may be one that this crate does not know.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The driver's name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The function of the driver that failed, such as `cuMemAlloc_v2`.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, name, description, call } = self;
        write!(f, "{call}: {name} ({code}): {description}")
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaError({self})")
    }
}

impl std::error::Error for CudaError {}

/// The error of this crate's functions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable driver on this machine.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// A call of the driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The process may use no GPU of this name.
    #[error("no GPU {name}: there are {there}")]
    NoSuchGpu {
        /// The name.
        name: GpuName,
        /// The numbers and PCI addresses of the GPUs that there are.
        there: String,
    },
    /// Memory of this many elements cannot be allocated: of none, or of more bytes than can be
    /// counted.
    #[error("{len} elements of {size} bytes are no size for a buffer")]
    BufferSize {
        /// The number of elements.
        len: usize,
        /// The size of an element in bytes.
        size: usize,
    },
    /// A range does not lie in a slice.
    #[error("the range {start}..{end} does not lie in a slice of {len} elements")]
    OutOfBounds {
        /// The first element of the range.
        start: usize,
        /// The element after the range.
        end: usize,
        /// The number of elements of the slice.
        len: usize,
    },
    /// The two sides of a copy differ in length.
    #[error("a copy of {from} elements into {to}: both sides must have the same number")]
    LengthMismatch {
        /// The number of elements to copy.
        from: usize,
        /// The number of elements of the destination.
        to: usize,
    },
    /// The slices of a reduction do not fit together.
    #[error("a reduction on a GPU: {0}")]
    Operands(#[from] rdma_mem::SliceError),
    /// A slice of a reduction does not begin at an element.
    #[error("the slice at {address:#x} is not aligned for elements of {element} bytes")]
    Misaligned {
        /// The device address of the slice.
        address: u64,
        /// The size of an element in bytes.
        element: usize,
    },
    /// A slice or a stream belongs to another GPU than the kernels.
    #[error("slices, stream and kernels of a reduction must be of one GPU: copy the operands to it first")]
    OtherGpu,
    /// Memory cannot be exported as a dma-buf because of its kind.
    #[error("{0}")]
    NotExportable(#[from] NotExportable),
    /// The memory was not allocated to be shared.
    #[error("only memory of GpuBuffer::new_shareable can be shared by a descriptor")]
    NotShareable,
    /// A call of an RDMA device failed.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// A request of a [`GpuEndpoint`](crate::GpuEndpoint) failed.
    #[error("a transfer of a message failed: {0}")]
    Completion(rdma::WcError),
    /// A message was longer than the memory that it was received into, and is lost.
    #[error("a message of {len} bytes does not fit into {room} bytes: receive it into a longer slice")]
    MessageTooLong {
        /// The length of the message.
        len: usize,
        /// The length of the slice.
        room: usize,
    },
    /// The peer sent a message that no `GpuEndpoint` sends.
    #[error("the peer sent a message that is none of a GpuEndpoint: both ends must be one")]
    ForeignMessage,
    /// An earlier call failed and may have left a part of a message on the way.
    #[error("an earlier call on this end of the connection has failed: connect a new one")]
    EndpointFailed,
    /// The peer sent nothing within the timeout.
    #[error("the peer has sent nothing within the timeout of the connection")]
    Timeout,
    /// A [`GpuEndpoint`](crate::GpuEndpoint) has no path as its preference demands.
    #[error("{reason}")]
    Path {
        /// The reason, and what to do about it.
        reason: String,
    },
    /// The GPU neither orders a NIC's writes nor flushes them.
    #[error(
        "this GPU neither orders the writes of a NIC nor has cuFlushGPUDirectRDMAWrites: only a loopback read by the \
         NIC makes them visible (Landed::visible_by)"
    )]
    NeedsReadBack,
}

/// The kind of memory that cannot be exported as a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotExportable {
    /// Managed memory, whose pages move.
    #[error(
        "managed memory (cuMemAllocManaged) moves between host and GPU, so no NIC can access it: allocate a GpuBuffer"
    )]
    Managed,
    /// Memory of a stream-ordered pool.
    #[error(
        "memory of a pool (cuMemAllocAsync, cudaMallocAsync) is not for GPUDirect RDMA: allocate a GpuBuffer, or use cuMemAlloc"
    )]
    Pool,
    /// Host memory.
    #[error("the address is one of host memory: register it as host memory")]
    Host,
    /// An address that the driver does not know.
    #[error("the driver knows no memory at this address: it is freed, or of another process")]
    Unknown,
    /// The driver says that the memory is not capable of GPUDirect RDMA.
    #[error(
        "the driver says that this memory is not capable of GPUDirect RDMA: the GPU is one without it, such as a \
         GeForce, or the memory was made by cuMemCreate without gpuDirectRDMACapable: allocate a GpuBuffer"
    )]
    NotCapable,
}

impl Error {
    /// The failed call, if a call of the driver failed.
    #[must_use]
    pub fn cuda(&self) -> Option<CudaError> {
        match self {
            Self::Cuda(error) => Some(*error),
            _ => None,
        }
    }
}
