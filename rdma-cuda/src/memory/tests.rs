//! Tests of memory.

use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use rdma_cuda_stand_in::Control;
use rdma_test_support::{alone, passes_alone};

use super::*;
use crate::{CudaError, Error, NotExportable, Stream, testing};

/// Memory that `cuMemAllocAsync` or `cuMemAllocManaged` of the stand-in has allocated; it is not
/// freed.
#[derive(Debug)]
struct Foreign {
    gpu: Gpu,
    address: u64,
}

impl Foreign {
    fn new(gpu: &Gpu, function: &str) -> Self {
        type Allocate = unsafe extern "C" fn(*mut u64, usize, c_uint) -> c_int;
        // SAFETY: new requires that the initialisers of the library may run: it is loaded already.
        let library = unsafe { libloading::Library::new(gpu.driver().path()) }.unwrap();
        // SAFETY: get requires the function's type: both functions have three arguments, the third
        // of which is 0.
        let allocate = unsafe { library.get::<Allocate>(function.as_bytes()) }.unwrap();
        let mut address = 0;
        // SAFETY: the function requires space for an address and a current context, which `with`
        // sets.
        let code = gpu.with(|_| Ok(unsafe { allocate(&raw mut address, 4096, 0) }));
        assert_eq!(code, Ok(0));
        Self { gpu: gpu.clone(), address }
    }
}

// SAFETY: (1) the memory is of this GPU, (2) never freed, (3) the fields never change, and (4) no
// code makes references.
unsafe impl DeviceMemory for Foreign {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> usize {
        4096
    }

    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

#[test]
fn memory_is_of_the_kind_that_a_nic_can_access() {
    let driver = testing::stand_in();
    let kinds: Vec<_> =
        driver.gpus().unwrap().iter().map(|gpu| GpuBuffer::<u8>::new(gpu, 10).unwrap().kind()).collect();
    use AllocationKind::{Plain, Vmm};
    assert_eq!(kinds, [Vmm, Vmm, Plain, Plain]);
}

#[test]
fn a_buffer_of_no_size_or_too_much_is_an_error() {
    let gpu = testing::driver().gpu(0).unwrap();
    assert_eq!(GpuBuffer::<u32>::new(&gpu, 0).unwrap_err(), Error::BufferSize { len: 0, size: 4 });
    let len = usize::MAX / 2;
    assert_eq!(PinnedBuffer::<u32>::new(&gpu, len).unwrap_err(), Error::BufferSize { len, size: 4 });
    let error = GpuBuffer::<u8>::new(&gpu, 1 << 50).unwrap_err();
    assert_eq!(error.cuda().unwrap().code(), CudaError::OUT_OF_MEMORY, "{error}");
}

#[test]
fn ranges_lie_in_their_slice() {
    let gpu = testing::driver().gpu(0).unwrap();
    let slice = GpuBuffer::<u32>::new(&gpu, 100).unwrap().slice();
    let part = slice.range(10..20).unwrap().range(2..=4).unwrap();
    assert_eq!((part.len(), part.size(), part.address()), (3, 12, slice.address() + 48));
    assert_eq!(part.bytes().len(), 12);
    assert!(slice.range(100..).unwrap().is_empty());
    assert_eq!(slice.range(90..101).unwrap_err(), Error::OutOfBounds { start: 90, end: 101, len: 100 });
    #[allow(clippy::reversed_empty_ranges, reason = "an error is expected")]
    let reversed = slice.range(5..4);
    assert_eq!(reversed.unwrap_err(), Error::OutOfBounds { start: 5, end: 4, len: 100 });
    assert!(slice.range(0..=usize::MAX).is_err());
}

#[test]
fn a_slice_keeps_the_memory() {
    let gpu = testing::driver().gpu(0).unwrap();
    let buffer = GpuBuffer::<u8>::new(&gpu, 16).unwrap();
    let memory = Arc::downgrade(&buffer.memory());
    let slice = buffer.slice().range(1..2).unwrap();
    drop(buffer);
    assert!(memory.upgrade().is_some());
    drop(slice);
    assert!(memory.upgrade().is_none());
}

#[test]
fn a_new_pinned_buffer_is_zeroed() {
    let gpu = testing::driver().gpu(0).unwrap();
    let mut buffer = PinnedBuffer::<u64>::new(&gpu, 1000).unwrap();
    assert_eq!(*buffer, [0; 1000]);
    buffer[999] = 7;
    assert_eq!(buffer.iter().sum::<u64>(), 7);
}

#[test]
fn the_processor_cannot_read_a_device_address() {
    if testing::driver().path() != testing::stand_in().path() {
        return rdma_test_support::skip("a real driver may map memory at the same address");
    }
    let output = alone(&["memory::tests::child_that_reads_a_device_address"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
}

#[test]
#[ignore = "run by the_processor_cannot_read_a_device_address"]
fn child_that_reads_a_device_address() {
    let buffer = GpuBuffer::<u8>::new(&testing::stand_in().gpu(0).unwrap(), 16).unwrap();
    let address = std::ptr::with_exposed_provenance::<u8>(usize::try_from(buffer.slice().address()).unwrap());
    // SAFETY: none: this read must end the process.
    let byte = unsafe { address.read_volatile() };
    panic!("read {byte}");
}

#[test]
fn nothing_leaks_where_a_step_of_an_allocation_fails() {
    // Alone, because other tests have objects too.
    passes_alone(&["memory::tests::child_whose_allocations_fail"], &[]);
}

#[test]
#[ignore = "run by nothing_leaks_where_a_step_of_an_allocation_fails"]
fn child_whose_allocations_fail() {
    let (driver, control) = (testing::stand_in(), Control::new());
    let steps = ["cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"];
    for step in steps {
        let gpu = driver.gpu(0).unwrap();
        control.fail_next(step, 9999);
        let error = GpuBuffer::<u8>::new(&gpu, 16).unwrap_err();
        assert_eq!(error.cuda().unwrap().call(), step);
        assert_eq!(control.live(), 0, "after {step}");
    }
    let volta = driver.gpu(3).unwrap();
    control.fail_next("cuMemAlloc_v2", 9999);
    GpuBuffer::<u8>::new(&volta, 16).unwrap_err();
    control.fail_next("cuMemHostAlloc", 9999);
    PinnedBuffer::<u8>::new(&volta, 16).unwrap_err();
    for gpu in driver.gpus().unwrap() {
        let buffers = (GpuBuffer::<u8>::new(&gpu, 16).unwrap(), PinnedBuffer::<u8>::new(&gpu, 16).unwrap());
        assert!(control.live() > 1);
        drop(buffers);
        assert_eq!(control.live(), 0);
    }
    // Memory that stays mapped keeps its addresses.
    let mapped = GpuBuffer::<u8>::new(&driver.gpu(0).unwrap(), 16).unwrap();
    let live = control.live();
    control.fail_next("cuMemUnmap", 9999);
    drop(mapped);
    assert_eq!(control.live(), live);
}

#[test]
fn shared_memory_is_the_same_memory() {
    let gpu = testing::driver().gpu(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let buffer = GpuBuffer::<u32>::new_shareable(&gpu, 4).unwrap();
    let descriptor = buffer.share().unwrap();
    let imported = GpuBuffer::<u32>::import(&gpu, descriptor.as_fd(), 4).unwrap();
    drop(descriptor);
    stream.upload(&buffer.slice(), &[1, 2, 3, 4]).unwrap();
    drop(buffer);
    let mut numbers = [0; 4];
    stream.download(&imported.slice(), &mut numbers).unwrap();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[test]
fn memory_that_is_not_shared_is_refused() {
    let gpu = testing::driver().gpu(0).unwrap();
    assert_eq!(GpuBuffer::<u32>::new(&gpu, 4).unwrap().share().unwrap_err(), Error::NotShareable);
    let none = File::open("/dev/null").unwrap();
    let error = GpuBuffer::<u32>::import(&gpu, none.as_fd(), 4).unwrap_err();
    assert_eq!(error.cuda().unwrap().code(), CudaError::UNKNOWN);
    let small = GpuBuffer::<u8>::new_shareable(&gpu, 1).unwrap().share().unwrap();
    GpuBuffer::<u8>::import(&gpu, small.as_fd(), 1 << 30).unwrap_err();
}

#[test]
fn shared_memory_of_another_gpu_is_refused() {
    let [one, other] = [0, 1].map(|ordinal| testing::stand_in().gpu(ordinal).unwrap());
    let descriptor = GpuBuffer::<u8>::new_shareable(&one, 1).unwrap().share().unwrap();
    assert_eq!(GpuBuffer::<u8>::import(&other, descriptor.as_fd(), 1).unwrap_err(), Error::OtherGpu);
    GpuBuffer::<u8>::import(&one, descriptor.as_fd(), 1).unwrap();
}

#[test]
fn another_process_sees_shared_memory() {
    let gpu = testing::driver().gpu(0).unwrap();
    let buffer = GpuBuffer::<u32>::new_shareable(&gpu, 1).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    stream.upload(&buffer.slice(), &[41]).unwrap();
    // The child inherits it, because no flag says otherwise.
    let inherited = nix::unistd::dup(buffer.share().unwrap()).unwrap();
    let number = inherited.as_raw_fd().to_string();
    passes_alone(&["memory::tests::child_that_imports_memory"], &[("SHARED_MEMORY", &number)]);
    let mut number = [0];
    stream.download(&buffer.slice(), &mut number).unwrap();
    assert_eq!(number, [42]);
}

#[test]
#[ignore = "run by another_process_sees_shared_memory"]
fn child_that_imports_memory() {
    let number = std::env::var("SHARED_MEMORY").unwrap().parse().unwrap();
    // SAFETY: borrow_raw requires an open descriptor: the parent's, which nothing here closes.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let gpu = testing::driver().gpu(0).unwrap();
    let slice = GpuBuffer::<u32>::import(&gpu, descriptor, 1).unwrap().slice();
    let (stream, mut number) = (Stream::new(&gpu).unwrap(), [0]);
    stream.download(&slice, &mut number).unwrap();
    stream.upload(&slice, &[number[0] + 1]).unwrap();
}

#[test]
fn the_driver_knows_what_memory_is() {
    let gpu = testing::driver().gpu(0).unwrap();
    let buffer = GpuBuffer::<u8>::new(&gpu, 16).unwrap();
    let attributes = PointerAttributes::of(&gpu, buffer.slice().address()).unwrap().unwrap();
    assert_eq!(attributes.memory_type, MemoryType::DEVICE);
    assert_eq!((attributes.is_managed, attributes.is_pool, attributes.ordinal), (false, false, 0));

    let pinned = PinnedBuffer::<u8>::new(&gpu, 16).unwrap();
    let attributes = PointerAttributes::of(&gpu, pinned.as_ptr() as u64).unwrap().unwrap();
    assert_eq!(attributes.memory_type, MemoryType::HOST);
    assert_eq!(attributes.not_exportable(), Some(NotExportable::Host));

    let local = 0;
    assert_eq!(PointerAttributes::of(&gpu, (&raw const local) as u64).unwrap(), None);
}

#[test]
fn a_dma_buf_has_exactly_the_pages_of_the_memory() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    let slice = GpuBuffer::<u8>::new(&gpu, 100_000).unwrap().slice();
    let bytes: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    Stream::new(&gpu).unwrap().upload(&slice, &bytes).unwrap();

    let part = slice.range(70_001..71_001).unwrap();
    let dma_buf = DmaBuf::export(&testing::Part(part.clone(), ())).unwrap();
    assert_eq!(dma_buf.offset(), part.address() % 4096);
    // The position of the stand-in's descriptor is the start of the exported pages.
    let mut file = File::from(dma_buf.as_fd().try_clone_to_owned().unwrap());
    let mut page = [0; 4096];
    file.read_exact(&mut page).unwrap();
    let offset = usize::try_from(dma_buf.offset()).unwrap();
    assert_eq!(page[offset..offset + 1000], bytes[70_001..71_001]);
}

#[test]
fn memory_that_cannot_be_exported_is_refused_with_the_reason() {
    let driver = testing::stand_in();
    let gpu = driver.gpu(0).unwrap();
    let reason = |memory: &dyn DeviceMemory| DmaBuf::export(memory).unwrap_err();
    assert_eq!(reason(&Foreign::new(&gpu, "cuMemAllocAsync")), NotExportable::Pool.into());
    assert_eq!(reason(&Foreign::new(&gpu, "cuMemAllocManaged")), NotExportable::Managed.into());
    assert_eq!(reason(&Foreign { gpu: gpu.clone(), address: 4096 }), NotExportable::Unknown.into());

    let geforce = GpuBuffer::<u8>::new(&driver.gpu(2).unwrap(), 16).unwrap();
    let error = reason(&*geforce.memory());
    assert!(error.to_string().contains("GeForce"), "{error}");

    let volta = GpuBuffer::<u8>::new(&driver.gpu(3).unwrap(), 16).unwrap();
    assert_eq!(reason(&*volta.memory()).cuda().unwrap().code(), CudaError::NOT_SUPPORTED);
    assert!(!DmaBuf::is_supported(volta.gpu()) && DmaBuf::is_supported(&gpu));
}
