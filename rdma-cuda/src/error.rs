//! Errors of this crate.

use crate::driver::NoDriver;
use crate::gpu_name::GpuName;

pub use crate::cuda_error::CudaError;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// A slice belongs to another GPU than the stream, the kernels or the side of a connection that
    /// shall access it.
    #[error("the slice is on another GPU than what shall access it: use a stream of its GPU, or copy the slice first")]
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
