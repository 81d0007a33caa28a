//! Memory of GPUs on the device under test, with the stand-in for the GPU's driver: the reason why
//! a device has no direct path, messages that are staged then, and memory that a peer accesses by
//! an address that no processor can access.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::thread;

use rdma::op;
use rdma::{ConnectOptions, ErrorKind, ExposedRegion, InitOptions, MemoryOwner, RemoteAccess};
use rdma_cuda::{
    Cause, DeviceMemory, DmaBuf, Driver, Gpu, GpuBuffer, GpuEndpoint, GpuEndpointOptions, GpuRegion, GpuSlice,
    NicFacts, Policy, Preference, PreparedGpuEndpoint, Reason, RegionError, Stream, Way,
};
use rdma_tests::{MANAGED, Options, all_rights, buffer, open, pair, pattern, read, skip, skipped_on_iwarp, wait};

/// The first GPU of the stand-in, whose memory real NICs could access.
fn gpu() -> Gpu {
    static DRIVER: OnceLock<&'static Driver> = OnceLock::new();
    let load = || {
        // SAFETY: load_from requires an implementation of the driver API: the stand-in is one.
        unsafe { Driver::load_from(&rdma_cuda_stand_in::path()) }.unwrap()
    };
    DRIVER.get_or_init(load).gpu(0).unwrap()
}

fn download(slice: &GpuSlice<u8>) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    Stream::new(slice.gpu()).unwrap().download(slice, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_device_without_dma_bufs_is_a_cause_and_memory_is_staged() {
    let pd = open().context.alloc_pd().unwrap();
    let nic = NicFacts::of(&pd);
    if nic.is_software || nic.dma_buf.is_ok() {
        return skip("the device has a direct path");
    }
    let memory = GpuBuffer::<u8>::new(&gpu(), 4096).unwrap().memory();
    let register = |access, policy| {
        GpuRegion::register(&pd, memory.clone(), access, Preference { policy, ..Preference::default() })
    };
    let Err(RegionError::NoDirectPath { causes }) = register(RemoteAccess::READ, Policy::RequireDirect) else {
        panic!("the device has no direct path");
    };
    let [Cause::NicWithoutDmaBuf(error), Cause::NoPeerMemory] = causes[..] else { panic!("{causes:?}") };
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    let reason = Reason::NotPossible(causes);
    let for_peers = register(RemoteAccess::READ, Policy::PreferDirect).unwrap_err();
    assert_eq!(for_peers, RegionError::StagedForPeers { reason: reason.clone() });
    let staged = register(RemoteAccess::empty(), Policy::PreferDirect).unwrap();
    assert_eq!(staged.path().way, Way::Staged(reason));
    println!("{}", staged.path());
}

#[test]
fn messages_go_from_gpu_to_gpu() {
    let opened = open();
    if !opened.context.capabilities().manual_connect {
        return skip(MANAGED);
    }
    let gpu = gpu();
    let prepare = || {
        let (pd, options) = (opened.context.alloc_pd().unwrap(), GpuEndpointOptions::new().chunk(16 << 10));
        let options = options.timeout(rdma_tests::LIMIT);
        GpuEndpoint::prepare(&gpu, &pd, &InitOptions::new().port(opened.port), options).unwrap()
    };
    let (a, b) = (prepare(), prepare());
    println!("{}", a.path());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let connect = |end: PreparedGpuEndpoint, to| end.connect(to, &ConnectOptions::new()).unwrap();
    let (mut a, mut b) = (connect(a, &to_b), connect(b, &to_a));
    for len in [1, 16 << 10, 300_001] {
        let sent = pattern(len, 3);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, source) = (Stream::new(&gpu).unwrap(), GpuBuffer::<u8>::new(&gpu, len).unwrap());
                stream.upload(&source.slice(), &sent).unwrap();
                a.send(&stream.ready(source.slice()).unwrap()).unwrap();
            });
            let target = GpuBuffer::<u8>::new(&gpu, len).unwrap();
            assert_eq!(b.recv(&target.slice()).unwrap(), len);
            assert!(download(&target.slice()) == sent, "{len} bytes");
        });
    }
}

/// Memory of the stand-in's GPU, with the mapping that its dma-buf gives.
struct Mapped {
    memory: Arc<dyn DeviceMemory>,
    mapping: NonNull<u8>,
    len: usize,
}

// SAFETY: the value gives no access to the mapping but its address.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(memory: Arc<dyn DeviceMemory>) -> Self {
        let dma_buf = DmaBuf::export(&*memory).unwrap();
        assert_eq!(dma_buf.offset(), 0, "the memory begins a page");
        let (fd, len) = (dma_buf.as_fd().as_raw_fd(), memory.size());
        // SAFETY: lseek takes any descriptor: this is the stand-in's, whose position is the start.
        let start = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
        // SAFETY: mmap without MAP_FIXED replaces no mapping.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, start)
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        Self { memory, mapping: NonNull::new(mapping.cast()).unwrap(), len }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: munmap requires a mapping that nobody uses: that of `new`, whose region has
        // ended.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.len) };
    }
}

// SAFETY: MemoryOwner requires memory that stays where it is while the parts live, without
// references: the contract of DeviceMemory, which the parts hold.
unsafe impl MemoryOwner for Mapped {
    type Placement = rdma::Gpu;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        let address = usize::try_from(self.memory.address()).unwrap();
        (NonNull::new(ptr::without_provenance_mut(address)).unwrap(), self.memory.size(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

#[test]
fn a_peer_accesses_memory_of_a_gpu_by_the_address_that_kernels_use() {
    let (mut a, b) = pair(Options::default());
    if skipped_on_iwarp(&b.context, "siw ignores the address that a region shall have") {
        return;
    }
    let slice = GpuBuffer::<u8>::new(&gpu(), 1 << 16).unwrap().slice();
    let mapped = Mapped::new(Arc::clone(slice.memory()));
    let mapping = mapped.mapping;
    // SAFETY: register_mapped requires the owner's memory at `mapping` until the owner is dropped:
    // the owner has the mapping of the memory's dma-buf.
    let region: ExposedRegion<rdma::Gpu> = unsafe { b.pd.register_mapped(mapped, mapping, all_rights()) }.unwrap();
    assert_eq!(region.remote(..).unwrap().address(), slice.address());

    let content = pattern(5000, 7);
    let remote = region.remote(70..5070).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, &content), remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    assert!(download(&slice.range(70..5070).unwrap()) == content);
    assert_eq!(download(&slice.range(..70).unwrap()), [0; 70]);

    let written = pattern(3000, 1);
    let part = slice.range(10_000..13_000).unwrap();
    Stream::new(part.gpu()).unwrap().upload(&part, &written).unwrap();
    assert!(read(&mut a, region.remote(10_000..13_000).unwrap()) == written);
}
