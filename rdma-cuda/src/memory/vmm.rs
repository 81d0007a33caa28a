//! Memory by virtual memory management: physical memory, addresses, and a mapping of one at the
//! other. Each is a guard, so a failure on the way undoes the steps before it.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::attribute::DeviceAttribute;
use crate::driver::{AccessDescription, AllocationProperties, POSIX_FILE_DESCRIPTOR};
use crate::error::{CudaError, Error, Result};
use crate::gpu::Gpu;

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
const MINIMUM: c_int = 0;

/// Physical memory of a GPU that is mapped and accessible.
pub(super) struct Mapped {
    // Both are freed after the mapping is gone, and leak if it stays.
    addresses: ManuallyDrop<Addresses>,
    physical: ManuallyDrop<Physical>,
}

impl Mapped {
    /// Maps new memory of at least `size` bytes.
    pub(super) fn new(gpu: &Gpu, size: usize, is_shareable: bool) -> Result<Self> {
        let properties = properties(gpu, is_shareable);
        let size = whole(gpu, size, &properties)?;
        let physical = Physical::new(gpu, size, &properties)?;
        Self::map(gpu, size, physical)
    }

    /// Maps memory of at least `size` bytes that [`Self::share`] of a process has exported.
    pub(super) fn import(gpu: &Gpu, size: usize, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let size = whole(gpu, size, &properties(gpu, true))?;
        let physical = Physical::import(gpu, descriptor)?;
        physical.check_gpu()?;
        Self::map(gpu, size, physical)
    }

    fn map(gpu: &Gpu, size: usize, physical: Physical) -> Result<Self> {
        let addresses = Addresses::new(gpu, size)?;
        // SAFETY: cuMemMap requires reserved addresses; it checks that there is as much
        // physical memory.
        gpu.with(|driver| unsafe { driver.cuMemMap(addresses.address, size, 0, physical.handle, 0) })?;
        let mapped = Self { addresses: ManuallyDrop::new(addresses), physical: ManuallyDrop::new(physical) };
        let access = AccessDescription::read_write(gpu.device());
        // SAFETY: cuMemSetAccess requires mapped addresses and `count` descriptions.
        gpu.with(|driver| unsafe { driver.cuMemSetAccess(mapped.address(), size, &raw const access, 1) })?;
        Ok(mapped)
    }

    /// A descriptor of the memory for another process.
    pub(super) fn share(&self) -> Result<OwnedFd> {
        let (mut descriptor, handle) = (-1, self.physical.handle);
        self.gpu().with(|driver| {
            // SAFETY: cuMemExportToShareableHandle requires space for a descriptor, a handle that
            // is not released, and flags of 0.
            unsafe { driver.cuMemExportToShareableHandle(&raw mut descriptor, handle, POSIX_FILE_DESCRIPTOR, 0) }
        })?;
        // SAFETY: from_raw_fd requires a descriptor that nobody else closes: the driver has made it
        // for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(super) fn address(&self) -> u64 {
        self.addresses.address
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.addresses.gpu
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Addresses { gpu, address, size } = &*self.addresses;
        // SAFETY: cuMemUnmap requires mapped addresses that nobody uses: every slice, and every
        // work item that this crate gives to a stream, has an `Arc` of the allocation.
        let unmapped = gpu.with(|driver| unsafe { driver.cuMemUnmap(*address, *size) });
        if unmapped.is_ok() {
            // SAFETY: ManuallyDrop::drop requires a value that nobody uses again: `self` ends.
            unsafe { ManuallyDrop::drop(&mut self.addresses) };
            // SAFETY: as for the addresses.
            unsafe { ManuallyDrop::drop(&mut self.physical) };
        }
        warn(unmapped);
    }
}

/// Physical memory.
struct Physical {
    gpu: Gpu,
    handle: u64,
}

impl Physical {
    fn new(gpu: &Gpu, size: usize, properties: &AllocationProperties) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: cuMemCreate requires space for a handle, properties, and flags of 0.
        gpu.with(|driver| unsafe { driver.cuMemCreate(&raw mut handle, size, properties, 0) })?;
        Ok(Self { gpu: gpu.clone(), handle })
    }

    fn import(gpu: &Gpu, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let mut handle = 0;
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
        gpu.with(|driver| {
            // SAFETY: cuMemImportFromShareableHandle requires space for a handle, and an open
            // descriptor, which it checks and does not keep.
            unsafe { driver.cuMemImportFromShareableHandle(&raw mut handle, number, POSIX_FILE_DESCRIPTOR) }
        })?;
        Ok(Self { gpu: gpu.clone(), handle })
    }

    /// Requires memory of this GPU: the other process may have shared that of another one.
    fn check_gpu(&self) -> Result<()> {
        let mut found = AllocationProperties::new(-1, false, false);
        self.gpu.with(|driver| {
            // SAFETY: cuMemGetAllocationPropertiesFromHandle requires space for properties, and a
            // handle that is not released.
            unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut found, self.handle) }
        })?;
        if found.is_of(self.gpu.device()) { Ok(()) } else { Err(Error::OtherGpu) }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: cuMemRelease requires a handle of cuMemCreate that is released once.
        warn(self.gpu.with(|driver| unsafe { driver.cuMemRelease(self.handle) }));
    }
}

/// Reserved addresses.
struct Addresses {
    gpu: Gpu,
    address: u64,
    size: usize,
}

impl Addresses {
    fn new(gpu: &Gpu, size: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: cuMemAddressReserve requires space for an address, and flags of 0.
        gpu.with(|driver| unsafe { driver.cuMemAddressReserve(&raw mut address, size, 0, 0, 0) })?;
        Ok(Self { gpu: gpu.clone(), address, size })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: cuMemAddressFree requires the range of a reservation that nothing is mapped at:
        // `Mapped` drops this only after it has unmapped.
        warn(self.gpu.with(|driver| unsafe { driver.cuMemAddressFree(self.address, self.size) }));
    }
}

/// Properties of memory that a NIC may access, where the GPU has that.
fn properties(gpu: &Gpu, is_shareable: bool) -> AllocationProperties {
    let is_rdma_capable = gpu.has(DeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    AllocationProperties::new(gpu.device(), is_shareable, is_rdma_capable)
}

/// The size of the memory for `size` bytes.
fn whole(gpu: &Gpu, size: usize, properties: &AllocationProperties) -> Result<usize> {
    let granularity = granularity(gpu, properties)?;
    // CUDA_ERROR_OUT_OF_MEMORY is what the driver says to a size that it can count.
    Ok(size.checked_next_multiple_of(granularity).unwrap_or(usize::MAX / granularity * granularity))
}

fn granularity(gpu: &Gpu, properties: &AllocationProperties) -> Result<usize> {
    let mut size = 0;
    // SAFETY: cuMemGetAllocationGranularity requires space for a size, and properties.
    gpu.with(|driver| unsafe { driver.cuMemGetAllocationGranularity(&raw mut size, properties, MINIMUM) })?;
    Ok(size.max(1))
}

fn warn(result: Result<(), CudaError>) {
    if let Err(error) = result {
        tracing::warn!("memory of a GPU leaks: {error}");
    }
}
