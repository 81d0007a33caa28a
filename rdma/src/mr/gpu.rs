//! Regions of GPU memory, and of the memory of other devices.
//!
//! The kernel has two ways to such memory: a dma-buf, which the driver of the memory's device
//! exports, and peer memory, where the driver answers for its addresses (`nvidia-peermem`). The
//! software device has the memory copied; the kernel's software devices need a mapping that the
//! processor can access. All make an [`ExposedRegion`] whose contents have no accessors, whether
//! peers have rights or not.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rdma_sys::ibv_access_flags;

use super::exposed::ExposedRegion;
use super::memory::{Gpu, Memory, MemoryOwner, RawMemory};
use super::options::RegisterOptions;
use super::{CopierThreads, Kind, Reach, Region};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::Raw;
use crate::pd::ProtectionDomain;
use crate::types::RemoteAccess;

/// The smallest page of a host: other pages are multiples of it.
const SMALLEST_PAGE: u16 = 4096;

impl ProtectionDomain {
    /// Registers memory of a GPU by a dma-buf, in which the memory begins at `offset`.
    ///
    /// Peers and requests use the owner's address, whatever the offset. The region has the owner's
    /// length exactly, also if the dma-buf holds whole pages. The descriptor is used during the
    /// call only: close it afterwards. Relaxed ordering is asked for, and left out if the device
    /// refuses it.
    ///
    /// The owner lives as long as the region, its slices, and requests on them.
    ///
    /// # Errors
    ///
    /// With the memory: `InvalidInput` if the memory has no bytes, if its address and `offset`
    /// differ within a page, or if it does not lie in the dma-buf; `NotSupported` if the device
    /// cannot import dma-bufs; errors of the device.
    ///
    /// # Safety
    ///
    /// The dma-buf holds the owner's memory, from `offset` on: the device accesses what the dma-buf
    /// holds.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dmabuf<O: MemoryOwner<Placement = Gpu>>(
        &self,
        owner: O,
        fd: BorrowedFd<'_>,
        offset: u64,
        access: RemoteAccess,
    ) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
        let memory = RawMemory::new(owner);
        if differ_within_a_page(&memory, offset) {
            return Err(failed(Error::new(Verb::RegisterDmaBuf, ErrorKind::InvalidInput), memory));
        }
        self.register_gpu(memory, access, Reach::DmaBuf { fd, offset })
    }

    /// Registers memory of a GPU by its address, which needs the kernel's peer memory interface and
    /// the GPU driver's module for it (`nvidia-peermem`).
    ///
    /// The owner lives as long as the region, its slices, and requests on them.
    ///
    /// # Errors
    ///
    /// With the memory: `InvalidInput` if the memory has no bytes; `Os` with `EFAULT` if no module
    /// answers for the address; errors of the device.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_peer_memory<O: MemoryOwner<Placement = Gpu>>(
        &self,
        owner: O,
        access: RemoteAccess,
    ) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
        self.register_gpu(RawMemory::new(owner), access, Reach::Address)
    }

    /// Registers memory of a GPU by a mapping of it that the processor can access, for devices that
    /// cannot do without: rxe and siw. Peers and requests use the owner's address.
    ///
    /// # Errors
    ///
    /// With the memory: `InvalidInput` if the memory has no bytes, or if its address and `mapping`
    /// differ within a page; errors of the device.
    ///
    /// # Safety
    ///
    /// The owner's memory can be read and written at `mapping` too, until the owner is dropped, and
    /// no reference to it exists: the device accesses the mapping.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn register_mapped<O: MemoryOwner<Placement = Gpu>>(
        &self,
        owner: O,
        mapping: NonNull<u8>,
        access: RemoteAccess,
    ) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
        let memory = RawMemory::new(owner);
        if differ_within_a_page(&memory, mapping.addr().get() as u64) {
            return Err(failed(Error::new(Verb::RegisterMr, ErrorKind::InvalidInput), memory));
        }
        self.register_gpu(memory, access, Reach::Mapping(mapping))
    }

    /// Registers memory of a GPU with the software device, which has threads copy it in place of
    /// accessing it. Peers and requests use the owner's address.
    ///
    /// Sends, receives, writes and reads work as on a NIC. Datagrams from and to such memory fail.
    ///
    /// The owner lives as long as the region, its slices, requests on them, and copies.
    ///
    /// # Errors
    ///
    /// With the memory: `InvalidInput` if the memory has no bytes; `NotSupported` for
    /// `RemoteAccess::ATOMIC`, and if the device is hardware.
    ///
    /// # Safety
    ///
    /// The copier of the threads can access the owner's memory at its address, until the owner is
    /// dropped.
    pub unsafe fn register_copied<O: MemoryOwner<Placement = Gpu>>(
        &self,
        owner: O,
        copier: &CopierThreads,
        access: RemoteAccess,
    ) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
        self.register_gpu(RawMemory::new(owner), access, Reach::Copies(copier))
    }

    /// Asks whether the device, its driver and the kernel can register dma-bufs.
    ///
    /// # Errors
    ///
    /// `NotSupported` if one of them cannot, and any other refusal of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// match pd.probe_dmabuf() {
    ///     Ok(()) => println!("GPU memory can be registered by a dma-buf"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn probe_dmabuf(&self) -> Result<()> {
        let table = self.inner.context.table;
        self.inner.context.check(Verb::RegisterDmaBuf)?;
        let flags = i32::try_from(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0).unwrap_or(0);
        // A device that knows the verb looks the descriptor up, and finds that -1 is none.
        // SAFETY: ibv_reg_dmabuf_mr requires a live domain of this table, which `self` is; it
        // checks the descriptor itself.
        let call = || unsafe { (table.ibv_reg_dmabuf_mr)(self.as_raw(), 0, SMALLEST_PAGE.into(), 0, -1, flags) };
        match Raw::created(Verb::RegisterDmaBuf, call) {
            Err(error) if error.errno() == Some(libc::EBADF) => Ok(()),
            Err(error) => Err(error),
            Ok(raw) => {
                // SAFETY: ibv_dereg_mr requires a live region of this table that nobody uses: the
                // region that the call above made.
                unsafe { (table.ibv_dereg_mr)(raw.as_ptr()) };
                Err(Error::new(Verb::RegisterDmaBuf, ErrorKind::Unknown))
            }
        }
    }

    fn register_gpu(
        &self,
        memory: RawMemory,
        access: RemoteAccess,
        reach: Reach<'_>,
    ) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
        let options = RegisterOptions::new().remote_access(access);
        let region = Region::new(&self.inner, memory, Kind::ExposedGpu, &options, reach);
        region.map(ExposedRegion::new).map_err(|(error, memory)| failed(error, memory))
    }
}

fn differ_within_a_page(memory: &RawMemory, place: u64) -> bool {
    (memory.address().addr().get() as u64 ^ place) % u64::from(SMALLEST_PAGE) != 0
}

/// Requires GPU memory that is not registered.
fn failed(error: Error, memory: RawMemory) -> Failed<Memory<Gpu>> {
    // SAFETY: from_raw requires memory that is not registered and lies on a GPU: the callers pass
    // the memory of a Gpu owner that was not registered.
    Failed::new(error, unsafe { Memory::from_raw(memory) })
}
