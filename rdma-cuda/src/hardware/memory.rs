//! Which memory a real driver exports, how, and what it allows.

use std::ffi::c_int;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{Whence, lseek};
use rdma_test_support::say;

use crate::driver::{AccessDescription, AllocationProperties};
use crate::memory::DeviceMemory;
use crate::{
    AllocationKind, CudaError, DeviceAttribute, DmaBuf, Error, Gpu, GpuBuffer, NotExportable, PointerAttributes,
    SyncMemops, testing,
};

const SIZE: usize = 4 << 20;
const PAGE: u64 = 4096;

/// Memory that is not freed before the test ends.
#[derive(Debug)]
struct Range {
    gpu: Gpu,
    address: u64,
    size: usize,
}

// SAFETY: (1) the memory is of this GPU, (2) the tests free it after their last use of the value,
// (3) the fields never change, and (4) no code makes references.
unsafe impl DeviceMemory for Range {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

/// A function of the driver that this crate does not call otherwise: an address and a size, and a
/// handle or flags.
fn allocate(gpu: &Gpu, function: &str, argument: usize) -> Result<Range, c_int> {
    type Allocate = unsafe extern "C" fn(*mut u64, usize, usize) -> c_int;
    // SAFETY: new requires that the initialisers of the library may run: it is loaded already.
    let library = unsafe { libloading::Library::new(gpu.driver().path()) }.unwrap();
    // SAFETY: get requires the function's type: the third argument is a stream, or flags, which the
    // calling convention passes alike.
    let allocate = unsafe { library.get::<Allocate>(function.as_bytes()) }.unwrap();
    let mut address = 0;
    // SAFETY: the function requires space for an address and a current context, which `with` sets.
    let code = gpu.with(|_| Ok(unsafe { allocate(&raw mut address, SIZE, argument) })).unwrap();
    if code == 0 { Ok(Range { gpu: gpu.clone(), address, size: SIZE }) } else { Err(code) }
}

/// Exports a range as it is given, without a look at it; returns the descriptor or CUDA's code.
fn export(gpu: &Gpu, address: u64, size: usize, flags: u64) -> Result<OwnedFd, i32> {
    let mut descriptor = -1;
    // SAFETY: cuMemGetHandleForAddressRange requires space for a descriptor; it checks the range.
    let exported = gpu
        .with(|driver| unsafe { driver.cuMemGetHandleForAddressRange(&raw mut descriptor, address, size, 1, flags) });
    // SAFETY: from_raw_fd requires a descriptor that nobody else closes: the driver has made it
    // here.
    exported.map(|()| unsafe { OwnedFd::from_raw_fd(descriptor) }).map_err(|error| error.code())
}

/// What the driver does with an allocation.
fn describe(name: &str, memory: &dyn DeviceMemory) -> Option<DmaBuf> {
    let attributes = PointerAttributes::of(memory.gpu(), memory.address());
    let exported = DmaBuf::export(memory);
    let sync = SyncMemops::set(memory);
    say(&format!(
        "{name}: address % 2 MiB = {:#x}; {attributes:?}; dma-buf: {:?}; {sync}",
        memory.address() % (2 << 20),
        exported.as_ref().map(|_| ())
    ));
    exported.ok()
}

#[test]
fn memory_of_this_crate_is_exported_as_attributes_say() {
    let Some(gpu) = testing::hardware() else { return };
    let has = DmaBuf::is_supported(&gpu);
    let buffer = GpuBuffer::<u8>::new(&gpu, SIZE).unwrap();
    let vmm = gpu.has(DeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    assert_eq!(buffer.kind(), if vmm { AllocationKind::Vmm } else { AllocationKind::Plain });
    let dma_buf = describe("GpuBuffer", &*buffer.memory());
    assert_eq!(dma_buf.is_some(), has);
    let shareable =
        describe("GpuBuffer::new_shareable", &*GpuBuffer::<u8>::new_shareable(&gpu, SIZE).unwrap().memory());
    assert_eq!(shareable.is_some(), has);
    let Some(dma_buf) = dma_buf else { return };

    assert_eq!(dma_buf.offset(), 0);
    say(&format!("size of the descriptor: {:?} of {SIZE}", lseek(&dma_buf, 0, Whence::SeekEnd)));
    // The driver lets no processor map it, so nothing here reads GPU memory by accident.
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: mmap requires that a mapping replaces nothing: it is not a fixed one.
    let mapped = unsafe { mmap(None, NonZeroUsize::new(4096).unwrap(), access, MapFlags::MAP_SHARED, &dma_buf, 0) };
    say(&format!("mmap of the descriptor: {mapped:?}"));
    if let Ok(start) = mapped {
        // SAFETY: munmap requires a mapping that nobody uses.
        unsafe { munmap(start, 4096) }.unwrap();
    }

    // Parts: within pages, and those of which the first and last page are shared with neighbours.
    let slice = buffer.slice();
    for range in [70_001..71_001, 0..1, SIZE - 1..SIZE, 4096..8192, 65_536..131_072] {
        let part = testing::Part(slice.range(range.clone()).unwrap(), ());
        let exported = DmaBuf::export(&part).unwrap();
        assert_eq!(exported.offset(), range.start as u64 % PAGE, "{range:?}");
    }
    // The descriptor outlives the memory, whose pages it keeps.
    drop(buffer);
    drop(slice);
    let duplicate = dma_buf.as_fd().try_clone_to_owned().unwrap();
    say(&format!("after the memory is freed: size {:?}", lseek(&duplicate, 0, Whence::SeekEnd)));
}

#[test]
fn ranges_that_are_no_whole_pages_are_refused() {
    let Some(gpu) = testing::hardware() else { return };
    if !DmaBuf::is_supported(&gpu) {
        return rdma_test_support::skip("the driver exports no dma-bufs here");
    }
    let buffer = GpuBuffer::<u8>::new(&gpu, SIZE).unwrap();
    let start = buffer.slice().address();
    for (name, at, size, is_good) in [
        ("all of it", start, SIZE, true),
        ("a page of 4 KiB", start + PAGE, 4096, true),
        ("an address within a page", start + 1, 4096, false),
        ("a size within a page", start, 4095, false),
        ("nothing", start, 0, false),
    ] {
        let exported = export(&gpu, at, size, 0).map(drop);
        say(&format!("export of {name}: {exported:?}"));
        assert_eq!(exported.is_ok(), is_good, "{name}: {exported:?}");
    }
    // The driver exports the neighbour too if there is one, so this crate asks for no more than the
    // pages of the memory.
    say(&format!("export of more than the memory: {:?}", export(&gpu, start, SIZE + (2 << 20), 0).map(drop)));
    say(&format!("export by the flag for PCIe: {:?}", export(&gpu, start, SIZE, 1).map(drop)));
}

#[test]
fn other_memory_is_classified_before_it_is_exported() {
    let Some(gpu) = testing::hardware() else { return };
    let plain = allocate(&gpu, "cuMemAlloc_v2", 0).unwrap();
    assert_eq!(describe("cuMemAlloc", &plain).is_some(), DmaBuf::is_supported(&gpu));
    let pool = allocate(&gpu, "cuMemAllocAsync", 0).unwrap();
    describe("cuMemAllocAsync", &pool);
    assert_eq!(DmaBuf::export(&pool).unwrap_err(), NotExportable::Pool.into());
    let managed = allocate(&gpu, "cuMemAllocManaged", 1).unwrap();
    describe("cuMemAllocManaged", &managed);
    assert_eq!(DmaBuf::export(&managed).unwrap_err(), NotExportable::Managed.into());
    let unknown = Range { gpu: gpu.clone(), address: 4096, size: 4096 };
    assert_eq!(DmaBuf::export(&unknown).unwrap_err(), NotExportable::Unknown.into());
    for range in [plain, pool, managed] {
        // SAFETY: cuMemFree requires an allocation that nobody uses: the descriptors are closed.
        gpu.with(|driver| unsafe { driver.cuMemFree_v2(range.address) }).unwrap();
    }
}

/// Two allocations of `cuMemCreate` whose addresses follow each other.
#[test]
fn memory_of_cu_mem_create_without_the_flag_and_of_two_pieces() {
    let Some(gpu) = testing::hardware() else { return };
    for is_capable in [false, true] {
        let properties = AllocationProperties::new(gpu.device(), false, is_capable);
        let (mut size, mut address) = (0, 0);
        // SAFETY: cuMemGetAllocationGranularity requires space for a size, and properties.
        gpu.with(|driver| unsafe { driver.cuMemGetAllocationGranularity(&raw mut size, &raw const properties, 0) })
            .unwrap();
        // SAFETY: cuMemAddressReserve requires space for an address, and flags of 0.
        gpu.with(|driver| unsafe { driver.cuMemAddressReserve(&raw mut address, 2 * size, 0, 0, 0) }).unwrap();
        let pieces = [0, size].map(|offset| {
            let mut handle = 0;
            // SAFETY: cuMemCreate requires space for a handle, properties, and flags of 0.
            gpu.with(|driver| unsafe { driver.cuMemCreate(&raw mut handle, size, &raw const properties, 0) }).unwrap();
            // SAFETY: cuMemMap requires reserved addresses, and as much physical memory.
            gpu.with(|driver| unsafe { driver.cuMemMap(address + offset as u64, size, 0, handle, 0) }).unwrap();
            handle
        });
        let access = AccessDescription::read_write(gpu.device());
        // SAFETY: cuMemSetAccess requires mapped addresses and one description.
        gpu.with(|driver| unsafe { driver.cuMemSetAccess(address, 2 * size, &raw const access, 1) }).unwrap();

        let name = format!("cuMemCreate, capable {is_capable}, granularity {size}");
        let one = Range { gpu: gpu.clone(), address, size };
        describe(&name, &one);
        let both = Range { gpu: gpu.clone(), address, size: 2 * size };
        describe(&format!("{name}, two pieces"), &both);
        let half = Range { gpu: gpu.clone(), address: address + (size / 2) as u64, size };
        describe(&format!("{name}, across two pieces"), &half);

        // SAFETY: cuMemUnmap requires mapped addresses that nobody uses.
        gpu.with(|driver| unsafe { driver.cuMemUnmap(address, 2 * size) }).unwrap();
        for handle in pieces {
            // SAFETY: cuMemRelease requires a handle of cuMemCreate that is released once.
            gpu.with(|driver| unsafe { driver.cuMemRelease(handle) }).unwrap();
        }
        // SAFETY: cuMemAddressFree requires a reservation that nothing is mapped at.
        gpu.with(|driver| unsafe { driver.cuMemAddressFree(address, 2 * size) }).unwrap();
    }
}

#[test]
fn a_gpu_has_less_than_a_pebibyte() {
    let Some(gpu) = testing::hardware() else { return };
    let Error::Cuda(error) = GpuBuffer::<u8>::new(&gpu, 1 << 50).unwrap_err() else { panic!("an error of CUDA") };
    say(&format!("1 PiB: {error}"));
    assert_eq!(error.code(), CudaError::OUT_OF_MEMORY);
}
