//! The driver's attributes of an address, and export of memory as a dma-buf.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rdma_mem::page_size;

use crate::attribute::DeviceAttribute;
use crate::error::{CudaError, NotExportable, Result};
use crate::gpu::Gpu;
use crate::memory::DeviceMemory;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF_FD: std::ffi::c_int = 1;

/// The driver's attributes of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerAttributes {
    /// Where the memory is.
    pub memory_type: MemoryType,
    /// Whether the memory is managed: its pages move between host and GPU.
    pub is_managed: bool,
    /// Whether the memory is of a stream-ordered pool. False with drivers before CUDA 11.3.
    pub is_pool: bool,
    /// Ordinal of the GPU.
    pub ordinal: i32,
    /// Whether a NIC can access the memory, if the driver can say so (from CUDA 11.2 on).
    pub is_rdma_capable: Option<bool>,
}

/// Where memory is (`CUmemorytype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryType(pub u32);

impl MemoryType {
    /// Host memory that the driver knows.
    pub const HOST: Self = Self(1);
    /// Memory of a GPU.
    pub const DEVICE: Self = Self(2);
}

impl PointerAttributes {
    /// Asks the driver about an address; `None` if it knows no memory there.
    ///
    /// # Errors
    ///
    /// If the driver cannot answer.
    pub fn of(gpu: &Gpu, address: u64) -> Result<Option<Self>> {
        let memory_type = match attribute(gpu, 2, address) {
            Ok(value) => MemoryType(integer(value)),
            Err(error) if error.code() == CudaError::INVALID_VALUE => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // An old driver does not know all attributes.
        let value = |number| attribute(gpu, number, address).ok();
        Ok(Some(Self {
            memory_type,
            is_managed: value(8).is_some_and(|value| value != 0),
            is_pool: value(17).is_some_and(|value| value != 0),
            ordinal: value(9).map_or(0, integer),
            is_rdma_capable: value(15).map(|value| value != 0),
        }))
    }

    /// The reason why the memory cannot be exported as a dma-buf, if there is one.
    #[must_use]
    pub fn not_exportable(&self) -> Option<NotExportable> {
        match self {
            Self { is_managed: true, .. } => Some(NotExportable::Managed),
            Self { is_pool: true, .. } => Some(NotExportable::Pool),
            Self { memory_type: MemoryType::HOST, .. } => Some(NotExportable::Host),
            Self { is_rdma_capable: Some(false), .. } => Some(NotExportable::NotCapable),
            _ => None,
        }
    }
}

/// An attribute of an address. CUDA's booleans have one byte and its integers four.
pub(super) fn attribute(gpu: &Gpu, number: i32, address: u64) -> Result<u64, CudaError> {
    let mut value = 0_u64;
    let room = (&raw mut value).cast();
    // SAFETY: cuPointerGetAttribute requires space for the attribute's type, at most 8 bytes for
    // those that this module asks for, and takes any address.
    gpu.with(|driver| unsafe { driver.cuPointerGetAttribute(room, number, address) })?;
    // The lower bytes are the first ones.
    Ok(u64::from_le(value))
}

fn integer<T: TryFrom<u64> + Default>(value: u64) -> T {
    T::try_from(value).unwrap_or_default()
}

/// GPU memory as a dma-buf, which a NIC's driver can import.
///
/// The dma-buf has whole pages of the host, of which the memory is the part from
/// [`offset`](Self::offset) on. The pages stay allocated as long as the dma-buf or an importer
/// exists, but the device address does not stay theirs: keep the memory as long as it is
/// registered.
#[derive(Debug)]
pub struct DmaBuf {
    descriptor: OwnedFd,
    offset: u64,
}

impl DmaBuf {
    /// Exports memory. The driver is asked what the memory is first, because it does not survive
    /// the export of some kinds of memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotExportable`](crate::Error::NotExportable);
    /// [`CudaError::NOT_SUPPORTED`] if the GPU lacks [`DeviceAttribute::DMA_BUF_SUPPORTED`] or the
    /// kernel dma-bufs, [`CudaError::NOT_FOUND`] with a driver before CUDA 11.7.
    pub fn export(memory: &dyn DeviceMemory) -> Result<Self> {
        let (gpu, address) = (memory.gpu(), memory.address());
        let attributes = PointerAttributes::of(gpu, address)?.ok_or(NotExportable::Unknown)?;
        if let Some(reason) = attributes.not_exportable() {
            return Err(reason.into());
        }
        let (start, size, offset) = whole_pages(address, memory.size(), page_size());
        let mut descriptor = -1;
        // SAFETY: cuMemGetHandleForAddressRange requires space for a descriptor, and whole pages
        // that are allocated: the owner keeps them, since an allocation has whole pages of the GPU,
        // which are whole pages of the host.
        gpu.with(|driver| unsafe {
            driver.cuMemGetHandleForAddressRange(&raw mut descriptor, start, size, DMA_BUF_FD, 0)
        })?;
        // SAFETY: from_raw_fd requires a descriptor that nobody else closes: the driver has made it
        // for this call.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor, offset })
    }

    /// Whether a GPU and its driver can export dma-bufs.
    #[must_use]
    pub fn is_supported(gpu: &Gpu) -> bool {
        gpu.has(DeviceAttribute::DMA_BUF_SUPPORTED)
    }

    /// The place of the memory's first byte in the dma-buf.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The whole pages that contain a range: their start, their size, and the range's offset in them.
fn whole_pages(address: u64, size: usize, page: usize) -> (u64, usize, u64) {
    let page = page as u64;
    let offset = address % page;
    // Memory ends before the last page of all addresses, so nothing overflows.
    let whole = (size as u64 + offset).next_multiple_of(page);
    (address - offset, usize::try_from(whole).unwrap_or(usize::MAX), offset)
}

#[cfg(test)]
mod tests {
    use super::whole_pages;

    #[test]
    fn a_range_is_rounded_to_pages_that_contain_it() {
        assert_eq!(whole_pages(0x10000, 4096, 4096), (0x10000, 4096, 0));
        assert_eq!(whole_pages(0x10001, 4095, 4096), (0x10000, 4096, 1));
        assert_eq!(whole_pages(0x10001, 4096, 4096), (0x10000, 8192, 1));
        assert_eq!(whole_pages(70_001, 1000, 4096), (69_632, 4096, 369));
        assert_eq!(whole_pages(0x2fff, 1, 0x1_0000), (0, 0x1_0000, 0x2fff));
    }
}
