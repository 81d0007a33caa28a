//! The order of CUDA's synchronous copies before a NIC's reads.

use std::ffi::c_int;
use std::fmt;

use crate::error::CudaError;
use crate::memory::DeviceMemory;

/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
const ATTRIBUTE: c_int = 6;

/// Whether CUDA's synchronous copies and fills of memory that a NIC accesses return only when they
/// are done (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
///
/// Without it, some of them return earlier, such as `cuMemcpyDtoD` and `cuMemsetD8`: code that
/// calls them has to wait for the default stream before the NIC reads. A
/// [`Stream`](crate::Stream) and its events need no attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncMemops {
    /// No NIC accesses the memory, which is staged.
    Unset,
    /// They are done when they return.
    Set,
    /// The driver does not allow it for this memory, as for that of `cuMemCreate`, of which most
    /// [`GpuBuffer`](crate::GpuBuffer)s are.
    Refused(CudaError),
}

impl SyncMemops {
    /// Sets the attribute on the allocation that has the memory.
    pub(crate) fn set(memory: &dyn DeviceMemory) -> Self {
        let (is_on, address): (c_int, u64) = (1, memory.address());
        let value = (&raw const is_on).cast();
        // SAFETY: cuPointerSetAttribute requires a value of the attribute's type, which is as large
        // as a C int at most, and takes any address.
        let set = memory.gpu().with(|driver| unsafe { driver.cuPointerSetAttribute(value, ATTRIBUTE, address) });
        match set {
            Ok(()) => Self::Set,
            Err(error) => Self::Refused(error),
        }
    }
}

impl fmt::Display for SyncMemops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => write!(f, "SYNC_MEMOPS not set"),
            Self::Set => write!(f, "SYNC_MEMOPS set"),
            Self::Refused(error) => write!(f, "SYNC_MEMOPS refused ({error}): wait for the default stream or an event"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_cuda_stand_in::Control;

    use super::*;
    use crate::memory::dma_buf::attribute;
    use crate::{AllocationKind, GpuBuffer, testing};

    fn is_set(buffer: &GpuBuffer<u8>) -> u64 {
        let memory = buffer.memory();
        attribute(memory.gpu(), ATTRIBUTE, memory.address()).unwrap()
    }

    #[test]
    fn the_driver_says_whether_it_is_set() {
        // A GPU whose memory cannot be registered if it is of cuMemCreate.
        let gpu = testing::stand_in().gpu(3).unwrap();
        let buffer = GpuBuffer::<u8>::new(&gpu, 100).unwrap();
        assert_eq!((buffer.kind(), is_set(&buffer)), (AllocationKind::Plain, 0));
        Control::new().fail_next("cuPointerSetAttribute", 9999);
        let SyncMemops::Refused(error) = SyncMemops::set(&*buffer.memory()) else { panic!("it must fail") };
        assert_eq!((error.code(), error.call(), is_set(&buffer)), (9999, "cuPointerSetAttribute", 0));
        assert_eq!(SyncMemops::set(&*buffer.memory()), SyncMemops::Set);
        assert_eq!(is_set(&buffer), 1);
    }

    #[test]
    fn virtual_memory_management_does_not_have_it() {
        let gpu = testing::stand_in().gpu(0).unwrap();
        let buffer = GpuBuffer::<u8>::new(&gpu, 100).unwrap();
        let refused = SyncMemops::set(&*buffer.memory());
        assert!(refused.to_string().contains("cuPointerSetAttribute: CUDA_ERROR_NOT_SUPPORTED"), "{refused}");
    }
}
