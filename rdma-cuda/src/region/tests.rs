//! Tests of regions. Where the NIC is `soft0`, given a mapping of each dma-buf, the GPUs are the
//! stand-in's: the addresses that requests name are the GPU's, which no processor can access.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{Whence, lseek};
use rdma::transport::Rc;
use rdma::{InitOptions, Opened, Poller, QueuePair, Verb, op};
use rdma_test_support::passes_alone;

use super::*;
use crate::topology::{Distance, Level};
use crate::{FlushMethod, Gpu, GpuBuffer, Landed, Policy, ReadBack, Stream, testing};

/// A NIC that imports the stand-in's dma-bufs.
struct Nic {
    pd: ProtectionDomain,
    /// The answer to the probe for dma-bufs.
    dma_buf: Result<(), rdma::Error>,
    /// The answer to registrations, if they fail.
    refusal: Option<rdma::Error>,
}

impl Nic {
    fn new() -> Self {
        Self::of(&soft())
    }

    fn of(opened: &Opened) -> Self {
        Self { pd: opened.context.alloc_pd().unwrap(), dma_buf: Ok(()), refusal: None }
    }

    fn register(&self, memory: Arc<dyn DeviceMemory>, access: RemoteAccess) -> Result<GpuRegion, RegionError> {
        self.register_with(memory, access, Preference::default(), HostFacts::default())
    }

    fn register_with(
        &self,
        memory: Arc<dyn DeviceMemory>,
        access: RemoteAccess,
        preference: Preference,
        host: HostFacts,
    ) -> Result<GpuRegion, RegionError> {
        GpuRegion::register_by(self, host, memory, access, preference)
    }

    /// Makes a registration fail, and the memory come back.
    fn refuse(&self, owner: Owner, error: rdma::Error) -> Registered {
        let nothing = Owner(Arc::new(Nowhere(owner.0.gpu().clone())));
        let refused = self.pd.register_peer_memory(nothing, RemoteAccess::empty());
        refused.map_err(|failed| Failed::new(error, failed.object))
    }
}

impl Registrar for Nic {
    fn nic(&self) -> NicFacts {
        NicFacts { name: "soft0".into(), is_software: false, dma_buf: self.dma_buf }
    }

    fn register_dmabuf(&self, owner: Owner, dma_buf: &DmaBuf, access: RemoteAccess) -> Registered {
        if let Some(error) = self.refusal {
            return self.refuse(owner, error);
        }
        let mapping = Mapping::new(dma_buf.as_fd(), owner.0.size() + usize::try_from(dma_buf.offset()).unwrap());
        // SAFETY: add requires a result in the mapping, which is longer than the offset.
        let place = unsafe { mapping.start.add(usize::try_from(dma_buf.offset()).unwrap()) };
        // SAFETY: register_mapped requires the owner's memory at `place` until the owner is
        // dropped: the owner has the mapping of the dma-buf, in which the memory begins at the
        // offset.
        unsafe { self.pd.register_mapped(Mapped { owner, mapping }, place, access) }
    }

    fn register_peer_memory(&self, owner: Owner, _: RemoteAccess) -> Registered {
        let error = self.refusal.unwrap_or(rdma::Error::from_errno(Verb::RegisterMr, libc::EFAULT));
        self.refuse(owner, error)
    }

    fn register_copied(&self, _: Owner, _: &CopierThreads, _: RemoteAccess) -> Registered {
        unreachable!("this NIC is hardware");
    }
}

/// Memory of no bytes, which every registration refuses.
#[derive(Debug)]
struct Nowhere(Gpu);

// SAFETY: there are no bytes.
unsafe impl DeviceMemory for Nowhere {
    fn address(&self) -> u64 {
        4096
    }

    fn size(&self) -> usize {
        0
    }

    fn gpu(&self) -> &Gpu {
        &self.0
    }
}

/// A mapping of what the stand-in exported: the file from its position on.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value gives no access to the mapping but its address.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize) -> Self {
        let position = lseek(fd, 0, Whence::SeekCur).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: mmap requires that a mapping replaces nothing: it is not a fixed one.
        let start = unsafe { mmap(None, NonZeroUsize::new(len).unwrap(), access, MapFlags::MAP_SHARED, fd, position) };
        Self { start: start.unwrap().cast(), len }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: munmap requires a mapping that nobody uses: the NIC has let go of it.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}

/// An owner with the mapping by which a software device accesses its memory.
struct Mapped {
    owner: Owner,
    mapping: Mapping,
}

// SAFETY: as for `Owner`, to which all is left.
unsafe impl MemoryOwner for Mapped {
    type Placement = rdma::Gpu;
    type Parts = (Owner, Mapping);

    fn into_parts(self) -> (NonNull<u8>, usize, Self::Parts) {
        let (address, size, owner) = self.owner.into_parts();
        (address, size, (owner, self.mapping))
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, (owner, mapping): Self::Parts) -> Self {
        Self { owner, mapping }
    }
}

fn soft() -> Opened {
    rdma::open(&"soft0".parse().unwrap()).unwrap()
}

fn gpu(ordinal: i32) -> Gpu {
    testing::stand_in().gpu(ordinal).unwrap()
}

fn buffer(ordinal: i32, len: usize) -> GpuBuffer<u8> {
    GpuBuffer::new(&gpu(ordinal), len).unwrap()
}

/// Memory of the first and of the last GPU of the driver for tests, for regions of `soft0`.
fn buffers(lens: [usize; 2]) -> [GpuBuffer<u8>; 2] {
    let gpus = testing::driver().gpus().unwrap();
    let [first, last] = [gpus.first(), gpus.last()].map(Option::unwrap);
    [GpuBuffer::new(first, lens[0]).unwrap(), GpuBuffer::new(last, lens[1]).unwrap()]
}

/// Two connected queue pairs, and the poller of the first.
fn connected(opened: &Opened, pd: &ProtectionDomain) -> (QueuePair<Rc>, QueuePair<Rc>, Poller) {
    let options = InitOptions::new().port(opened.port);
    let cq = opened.context.create_cq(64).unwrap();
    let [a, b] = [&cq, &opened.context.create_cq(64).unwrap()]
        .map(|cq| QueuePair::builder(pd).cq(cq).build().unwrap().init(&options).unwrap());
    let (a, b) = rdma_testkit::join(a, b).unwrap();
    (a, b, cq.poller())
}

#[test]
fn a_peer_writes_to_the_gpu_and_reads_from_it() {
    let opened = soft();
    let nic = Nic::of(&opened);
    let buffer = buffer(0, 10_000);
    let stream = Stream::new(&gpu(0)).unwrap();
    let region = nic.register(buffer.memory(), RemoteAccess::READ | RemoteAccess::WRITE).unwrap();
    assert_eq!(region.path().way, Way::DmaBuf);
    let (mut qp, _peer, mut poller) = connected(&opened, &nic.pd);

    // A write from host memory to a part that begins and ends within pages.
    let part = buffer.slice().range(4000..9000).unwrap();
    let remote = region.remote(&part).unwrap();
    assert_eq!(remote.address(), part.address());
    let pattern: Vec<u8> = (0..=250).cycle().take(5000).collect();
    let mut message = nic.pd.allocate(5000).unwrap();
    message.copy_from_slice(&pattern);
    qp.post_send(op::write(message, remote)).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
    let mut bytes = vec![0; 5000];
    stream.download(&part, &mut bytes).unwrap();
    assert!(bytes == pattern);

    // A write from the GPU to another place of the GPU.
    let ready = stream.ready(part.range(..1000).unwrap()).unwrap();
    let to = region.remote(&buffer.slice().range(..1000).unwrap()).unwrap();
    qp.post_send(op::write(region.source(&ready).unwrap(), to)).unwrap();
    let mut completion = poller.wait(None).unwrap().unwrap();
    completion.status().unwrap();
    assert_eq!(completion.take_gpu_slice().unwrap().len(), 1000);
    let mut copied = vec![0; 1000];
    stream.download(&buffer.slice().range(..1000).unwrap(), &mut copied).unwrap();
    assert!(copied == pattern[..1000]);
}

#[test]
fn a_gpu_that_cannot_flush_has_its_memory_read_back() {
    let attributes = "0:117=0,0:118=0";
    passes_alone(&["region::tests::memory_is_read_back"], &[("STAND_IN_ATTRIBUTES", attributes)]);
}

#[test]
#[ignore = "run by a_gpu_that_cannot_flush_has_its_memory_read_back"]
fn memory_is_read_back() {
    let opened = soft();
    let nic = Nic::of(&opened);
    let mut back = ReadBack::new(&nic.pd, opened.port).unwrap();
    let buffer = buffer(0, 5000);
    let region = nic.register(buffer.memory(), RemoteAccess::READ).unwrap();
    let slice = buffer.slice().range(4999..).unwrap();
    let reads = |back: &mut ReadBack, region: &GpuRegion| {
        Landed::new(slice.clone()).visible_by(|slice| back.read(region, slice))
    };
    for _ in 0..3 {
        assert_eq!(reads(&mut back, &region).unwrap().method(), FlushMethod::ReadBack);
    }
    let deaf = nic.register(buffer.memory(), RemoteAccess::WRITE).unwrap();
    assert_eq!(reads(&mut back, &deaf).unwrap_err(), RegionError::NotReadable);
    assert!(reads(&mut back, &region).is_ok());
    let nothing = slice.range(..0).unwrap();
    assert_eq!(back.read(&region, &nothing), Ok(()));
}

#[test]
fn a_region_keeps_the_memory_until_requests_have_ended() {
    let opened = soft();
    let nic = Nic::of(&opened);
    let (mut qp, peer, _poller) = connected(&opened, &nic.pd);
    let buffer = buffer(0, 4096);
    let memory = Arc::downgrade(&buffer.memory());
    let region = nic.register(buffer.memory(), RemoteAccess::empty()).unwrap();
    qp.post_recv(region.sink(&buffer.slice()).unwrap(), 1).unwrap();
    let failed = region.deregister().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    drop((failed, buffer));
    assert!(memory.upgrade().is_some(), "the receive keeps it");
    drop((qp, peer));
    assert!(memory.upgrade().is_none());
}

#[test]
fn a_region_that_is_not_in_use_ends_and_returns_the_memory() {
    let nic = Nic::new();
    let buffer = buffer(1, 100);
    let region = nic.register(buffer.memory(), RemoteAccess::WRITE).unwrap();
    let memory = region.deregister().unwrap();
    assert!(Arc::ptr_eq(&memory, &buffer.memory()));
}

#[test]
fn slices_of_other_memory_are_refused() {
    let nic = Nic::new();
    let (one, other) = (buffer(0, 100), buffer(0, 100));
    let region = nic.register(one.memory(), RemoteAccess::READ).unwrap();
    assert_eq!(region.remote(&other.slice()).unwrap_err(), RegionError::NotInRegion);
    assert!(region.sink(&other.slice()).is_err());
}

#[test]
fn memory_without_a_direct_path_is_staged_or_an_error() {
    let nic = Nic::new();
    let geforce = buffer(2, 100);
    let region = nic.register(geforce.memory(), RemoteAccess::empty()).unwrap();
    assert_eq!(region.path().way, Way::Staged(Reason::NotPossible(vec![Cause::GeForce])));
    let error = region.sink(&geforce.slice()).unwrap_err();
    assert!(error.to_string().contains("staged: the driver refuses RDMA for GeForce"), "{error}");
    assert!(region.deregister().is_ok());

    let error = nic.register(geforce.memory(), RemoteAccess::READ).unwrap_err();
    assert!(matches!(error, RegionError::StagedForPeers { .. }), "{error}");
    let required = Preference { policy: Policy::RequireDirect, ..Preference::default() };
    let error = nic.register_with(geforce.memory(), RemoteAccess::empty(), required, HostFacts::default());
    assert_eq!(error.unwrap_err(), RegionError::NoDirectPath { causes: vec![Cause::GeForce] });
}

#[test]
fn a_fall_back_to_staging_is_a_warning() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let nic = Nic::new();
    let warnings = |gpu, policy| {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let subscriber = rdma_test_support::OnEvent(move |event: &tracing::Event<'_>| {
            if *event.metadata().level() == tracing::Level::WARN {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let preference = Preference { policy, ..Preference::default() };
        let register =
            || nic.register_with(buffer(gpu, 100).memory(), RemoteAccess::empty(), preference, HostFacts::default());
        drop(tracing::subscriber::with_default(subscriber, register).unwrap());
        count.load(Ordering::Relaxed)
    };
    assert_eq!(warnings(2, Policy::PreferDirect), 1, "a GeForce");
    assert_eq!(warnings(0, Policy::PreferDirect), 0);
    assert_eq!(warnings(2, Policy::Staged), 0);
}

#[test]
fn staging_that_was_asked_for_registers_nothing() {
    let nic = Nic { refusal: Some(rdma::Error::new(Verb::RegisterMr, ErrorKind::Unknown)), ..Nic::new() };
    let staged = Preference { policy: Policy::Staged, ..Preference::default() };
    let region = nic.register_with(buffer(0, 64).memory(), RemoteAccess::empty(), staged, HostFacts::default());
    assert_eq!(region.unwrap().path().way, Way::Staged(Reason::Asked));
}

#[test]
fn an_unknown_distance_is_near_enough() {
    let near = Preference { level: Level::up_to(Distance::Loc), ..Preference::default() };
    let region = Nic::new().register_with(buffer(0, 64).memory(), RemoteAccess::empty(), near, HostFacts::default());
    assert!(region.unwrap().path().is_direct());
}

#[test]
fn peer_memory_is_the_second_way() {
    let invalid = rdma::Error::new(Verb::RegisterDmaBuf, ErrorKind::InvalidInput);
    let nic = Nic { refusal: Some(invalid), ..Nic::new() };
    let host = || HostFacts { peer_memory: true, ..HostFacts::default() };
    let required = Preference { policy: Policy::RequireDirect, ..Preference::default() };
    let error = nic.register_with(buffer(0, 64).memory(), RemoteAccess::empty(), required, host()).unwrap_err();
    let RegionError::NoDirectPath { causes } = error else { panic!("{error}") };
    assert_eq!(causes, [Cause::Refused(invalid), Cause::Refused(invalid)]);

    // A GPU that exports no dma-bufs, on a NIC that knows none.
    let nic = Nic { dma_buf: Err(rdma::Error::new(Verb::RegisterDmaBuf, ErrorKind::NotSupported)), ..Nic::new() };
    let error = nic.register_with(buffer(3, 64).memory(), RemoteAccess::empty(), required, host()).unwrap_err();
    let RegionError::NoDirectPath { causes } = error else { panic!("{error}") };
    assert_eq!(causes[0], Cause::NoExport);
    assert!(matches!(causes[1], Cause::Refused(error) if error.errno() == Some(libc::EFAULT)), "{causes:?}");
}

/// Writes a pattern through soft0 to memory of one GPU, and reads it to the memory of another.
fn transfer(memories: [Arc<dyn DeviceMemory>; 2]) {
    let opened = soft();
    let pd = opened.context.alloc_pd().unwrap();
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let regions = memories.map(|memory| GpuRegion::register(&pd, memory, access, Preference::default()).unwrap());
    let slices = regions.each_ref().map(|region| GpuSlice::<u8>::new(Arc::clone(region.memory())));
    let (mut qp, mut peer, mut poller) = connected(&opened, &pd);
    let stream = Stream::new(slices[0].gpu()).unwrap();

    let pattern: Vec<u8> = (0..=250).cycle().take(slices[0].len()).collect();
    let mut message = pd.allocate(pattern.len()).unwrap();
    message.copy_from_slice(&pattern);
    qp.post_send(op::write(message, regions[0].remote(&slices[0]).unwrap())).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();

    let sink = regions[1].sink(&slices[1]).unwrap();
    qp.post_send(op::read(sink, regions[0].remote(&slices[0]).unwrap())).unwrap();
    let mut completion = poller.wait(None).unwrap().unwrap();
    completion.status().unwrap();
    assert_eq!(completion.take_gpu_slice().unwrap().len(), pattern.len());
    let mut read = vec![0; pattern.len()];
    Stream::new(slices[1].gpu()).unwrap().download(&slices[1], &mut read).unwrap();
    assert!(read == pattern);

    // A send from one to the other.
    stream.fill(&slices[0], 9).unwrap();
    let ready = stream.ready(slices[0].clone()).unwrap();
    peer.post_recv(regions[1].sink(&slices[1]).unwrap(), 0).unwrap();
    qp.post_send(op::send(regions[0].source(&ready).unwrap())).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
    Stream::new(slices[1].gpu()).unwrap().download(&slices[1], &mut read).unwrap();
    assert!(read == vec![9; pattern.len()]);
}

#[test]
fn soft0_has_every_gpus_memory_copied() {
    // The third is a GeForce, which no NIC can access.
    transfer([buffer(0, 300_000).memory(), buffer(2, 300_000).memory()]);
    transfer(buffers([300_000; 2]).map(|buffer| buffer.memory()));
}

#[test]
fn soft0_says_how_it_accesses_a_gpu() {
    let pd = soft().context.alloc_pd().unwrap();
    let required = Preference { policy: Policy::RequireDirect, ..Preference::default() };
    let region = GpuRegion::register(&pd, buffer(0, 64).memory(), RemoteAccess::WRITE, required).unwrap();
    assert!(region.path().is_direct());
    let expected =
        "direct (software device, copies by the GPU's driver), GPU 0000:1b:00.0 <-> soft0, unknown, flush: none";
    assert_eq!(region.path().to_string(), expected);

    let error = GpuRegion::register(&pd, buffer(0, 64).memory(), RemoteAccess::ATOMIC, required).unwrap_err();
    assert!(error.to_string().contains("register without RemoteAccess::ATOMIC"), "{error}");
}

#[test]
fn synchronous_copies_are_ordered_where_the_driver_allows_it() {
    let pd = soft().context.alloc_pd().unwrap();
    let sync_memops = |memory, policy| {
        let preference = Preference { policy, ..Preference::default() };
        GpuRegion::register(&pd, memory, RemoteAccess::empty(), preference).unwrap().sync_memops()
    };
    // Memory of cuMemAlloc, and of cuMemCreate.
    let (plain, vmm) = (buffer(3, 64), buffer(0, 64));
    assert_eq!(sync_memops(plain.memory(), Policy::Staged), SyncMemops::Unset);
    assert_eq!(sync_memops(plain.memory(), Policy::RequireDirect), SyncMemops::Set);
    assert!(matches!(sync_memops(vmm.memory(), Policy::RequireDirect), SyncMemops::Refused(_)));
}

#[test]
fn a_stream_that_is_held_back_does_not_hold_up_soft0() {
    let opened = soft();
    let pd = opened.context.alloc_pd().unwrap();
    let [source, target] = buffers([4096; 2]);
    let regions = [&source, &target]
        .map(|buffer| GpuRegion::register(&pd, buffer.memory(), RemoteAccess::WRITE, Preference::default()).unwrap());
    // As a kernel that spins until it is told to end.
    let stream = Stream::new(source.gpu()).unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    stream.call_on_host(move || ended.recv().unwrap_or_default()).unwrap();
    let (mut qp, _peer, mut poller) = connected(&opened, &pd);
    let from = regions[0].source(&Ready::assume(source.slice())).unwrap();
    qp.post_send(op::write(from, regions[1].remote(&target.slice()).unwrap())).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
    assert!(!stream.is_done().unwrap());
    drop(end);
    stream.synchronize().unwrap();
}

#[test]
fn a_region_of_soft0_ends_after_its_copies_and_returns_the_memory() {
    let (opened, [buffer, _]) = (soft(), buffers([1 << 20, 1]));
    let pd = opened.context.alloc_pd().unwrap();
    let (mut qp, peer, _poller) = connected(&opened, &pd);
    for _ in 0..10 {
        let region = GpuRegion::register(&pd, buffer.memory(), RemoteAccess::WRITE, Preference::default()).unwrap();
        let remote = region.remote(&buffer.slice()).unwrap();
        if qp.post_send(op::write(pd.allocate(1 << 20).unwrap(), remote)).is_err() {
            break;
        }
        let memory = region.deregister().unwrap();
        assert!(Arc::ptr_eq(&memory, &buffer.memory()));
    }
    drop((qp, peer));
}

#[test]
fn leaked_handles_keep_what_a_peer_and_the_gpu_may_access() {
    let opened = soft();
    let pd = opened.context.alloc_pd().unwrap();
    let (mut qp, _peer, mut poller) = connected(&opened, &pd);
    let [source, target] = buffers([4096; 2]);
    let stream = Stream::new(source.gpu()).unwrap();
    let memories = [&source, &target].map(|buffer| Arc::downgrade(&buffer.memory()));
    let region = GpuRegion::register(&pd, target.memory(), RemoteAccess::WRITE, Preference::default()).unwrap();
    let remote = region.remote(&target.slice()).unwrap();
    let pinned = crate::PinnedBuffer::new(source.gpu(), 4096).unwrap();
    let copy = stream.download_pinned(&source.slice(), pinned).unwrap();
    let _leaked = std::mem::ManuallyDrop::new((copy, stream, region));
    drop((source, target));
    assert!(memories.iter().all(|memory| memory.upgrade().is_some()));
    // The key that a peer was told still leads to the memory.
    qp.post_send(op::write(pd.allocate(4096).unwrap(), remote)).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
}

#[test]
fn a_receive_yields_a_landed_slice_of_its_region() {
    let opened = soft();
    let pd = opened.context.alloc_pd().unwrap();
    let [target, source] = buffers([1000, 300]);
    let register = |buffer: &GpuBuffer<u8>| {
        GpuRegion::register(&pd, buffer.memory(), RemoteAccess::empty(), Preference::default()).unwrap()
    };
    let [from, to] = [&source, &target].map(register);
    let (mut qp, mut peer, mut poller) = connected(&opened, &pd);
    let stream = Stream::new(source.gpu()).unwrap();
    stream.fill(&source.slice(), 7).unwrap();
    qp.post_recv(to.sink(&target.slice().range(100..600).unwrap()).unwrap(), 0).unwrap();
    let ready = stream.ready(source.slice()).unwrap();
    peer.post_send(op::send(from.source(&ready).unwrap())).unwrap();
    let mut completion = poller.wait(None).unwrap().unwrap();
    completion.status().unwrap();
    let (len, memory) = (completion.byte_len(), completion.take_gpu_slice().unwrap());
    let visible = to.landed(&memory, len).unwrap().visible().unwrap();
    assert_eq!((visible.get().address(), visible.get().len()), (target.slice().address() + 100, 300));
    assert_eq!(to.landed(&memory, 501).unwrap_err(), RegionError::NotInRegion);
    assert_eq!(from.landed(&memory, 1).unwrap_err(), RegionError::NotInRegion);
    // The same memory, but another registration.
    assert_eq!(register(&target).landed(&memory, 1).unwrap_err(), RegionError::NotInRegion);
    let mut bytes = [0; 300];
    Stream::new(target.gpu()).unwrap().download(visible.get(), &mut bytes).unwrap();
    assert_eq!(bytes, [7; 300]);
}
