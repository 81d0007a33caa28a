//! Memory of a GPU: how it is registered, how long its owner lives, and that the processor never
//! touches it. Its addresses are not mapped, so that a touch would end the test.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::ibv_access_flags as flags;

use super::*;
use crate::{Error, ErrorKind, ExposedRegion, Failed, Gpu, Memory, MemoryOwner, RemoteAccess, Verb};

const ADDRESS: usize = 0x7000_0000_1046;
const LEN: usize = 1000;

/// Memory at an address that no processor can touch; notes its drop.
struct Vram {
    len: usize,
    dropped: Arc<AtomicBool>,
}

impl Vram {
    fn new(len: usize) -> Self {
        Self { len, dropped: Arc::default() }
    }
}

impl Drop for Vram {
    fn drop(&mut self) {
        assert_eq!(regions(), 0, "the memory outlives its region");
        self.dropped.store(true, Ordering::Relaxed);
    }
}

// SAFETY: MemoryOwner requires memory that stays valid: the test provider does not access it.
unsafe impl MemoryOwner for Vram {
    type Placement = Gpu;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (NonNull::new(ptr::without_provenance_mut(ADDRESS)).unwrap(), self.len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

fn register(
    pd: &ProtectionDomain,
    owner: Vram,
    offset: u64,
    access: RemoteAccess,
) -> Result<ExposedRegion<Gpu>, Failed<Memory<Gpu>>> {
    let fd = File::open("/dev/null").unwrap();
    // SAFETY: register_dmabuf requires a dma-buf of the owner's memory: the test provider takes any
    // descriptor, and accesses nothing.
    unsafe { pd.register_dmabuf(owner, fd.as_fd(), offset, access) }
}

#[test]
fn a_region_of_a_dma_buf_has_the_owners_address_and_length() {
    let pd = testing::context().alloc_pd().unwrap();
    let fd = File::open("/dev/null").unwrap();
    // SAFETY: as in `register`.
    let region = unsafe { pd.register_dmabuf(Vram::new(LEN), fd.as_fd(), 0x2046, RemoteAccess::WRITE) }.unwrap();
    let access = flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE | flags::IBV_ACCESS_RELAXED_ORDERING;
    let expected = testing::DmaBuf {
        offset: 0x2046,
        length: LEN,
        iova: ADDRESS as u64,
        fd: fd.as_raw_fd(),
        access: i32::try_from(access.0).unwrap(),
    };
    assert_eq!(testing::dma_bufs(), [expected]);
    drop(fd);
    assert_eq!(region.remote(10..30).unwrap(), RemoteSlice::new(ADDRESS as u64 + 10, 20, 0x44));
    assert_eq!((region.len(), region.lkey(), region.access()), (LEN, 0x33, RemoteAccess::WRITE));
    assert_eq!(region.slice(..=LEN).unwrap_err().kind(), ErrorKind::OutOfBounds);
}

#[test]
fn relaxed_ordering_is_left_out_if_the_device_refuses_it() {
    for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
        let pd = testing::context().alloc_pd().unwrap();
        testing::fail("reg_dmabuf_mr", errno);
        let before = testing::dma_bufs().len();
        register(&pd, Vram::new(LEN), 0x46, RemoteAccess::empty()).unwrap();
        let asked: Vec<u32> =
            testing::dma_bufs()[before..].iter().map(|call| u32::try_from(call.access).unwrap()).collect();
        let local = flags::IBV_ACCESS_LOCAL_WRITE.0;
        assert_eq!(asked, [local | flags::IBV_ACCESS_RELAXED_ORDERING.0, local]);
    }
}

#[test]
fn memory_that_is_not_registered_comes_back() {
    let pd = testing::context().alloc_pd().unwrap();
    let mut memory = Vram::new(LEN);
    for (errno, kind, calls) in [
        (libc::EOPNOTSUPP, ErrorKind::NotSupported, 2),
        (libc::EPROTONOSUPPORT, ErrorKind::NotSupported, 2),
        (libc::EINVAL, ErrorKind::InvalidInput, 2),
        (libc::ENOMEM, ErrorKind::OutOfMemory, 1),
    ] {
        (0..calls).for_each(|_| testing::fail("reg_dmabuf_mr", errno));
        let failed = register(&pd, memory, 0x46, RemoteAccess::empty()).unwrap_err();
        assert_eq!((failed.error.verb(), failed.error.kind()), (Verb::RegisterDmaBuf, kind));
        memory = failed.object.into_owner().expect("it was video memory");
    }
    testing::fail("reg_mr", libc::EFAULT);
    let failed = pd.register_peer_memory(memory, RemoteAccess::empty()).unwrap_err();
    assert_eq!(failed.error.errno(), Some(libc::EFAULT));
    // It may be registered in another way.
    let region = pd.register_peer_memory(failed.object, RemoteAccess::READ).unwrap();
    assert_eq!(region.remote(..).unwrap(), RemoteSlice::new(ADDRESS as u64, LEN as u64, 0x22));
}

#[test]
fn memory_is_registered_by_a_mapping_of_it_at_its_own_address() {
    let pd = testing::context().alloc_pd().unwrap();
    let mapping = |address| NonNull::new(ptr::without_provenance_mut(address)).unwrap();
    // SAFETY: register_mapped requires a mapping of the owner's memory: the test provider accesses
    // nothing.
    let failed = unsafe { pd.register_mapped(Vram::new(LEN), mapping(0x5047), RemoteAccess::READ) }.unwrap_err();
    assert_eq!(failed.error, Error::new(Verb::RegisterMr, ErrorKind::InvalidInput));
    // SAFETY: as for the call above.
    let region = unsafe { pd.register_mapped(failed.object, mapping(0x5046), RemoteAccess::READ) }.unwrap();
    assert_eq!(region.remote(..).unwrap(), RemoteSlice::new(ADDRESS as u64, LEN as u64, 0x22));
}

#[test]
fn an_offset_that_cannot_fit_is_refused_before_the_device_is_asked() {
    let pd = testing::context().alloc_pd().unwrap();
    for (offset, len) in [(0, LEN), (0x1045, LEN), (0x46, 0)] {
        let failed = register(&pd, Vram::new(len), offset, RemoteAccess::empty()).unwrap_err();
        assert_eq!(failed.error, Error::new(Verb::RegisterDmaBuf, ErrorKind::InvalidInput));
    }
    assert_eq!(testing::dma_bufs(), []);
}

#[test]
fn a_device_that_looks_for_the_descriptor_knows_dma_bufs() {
    let pd = testing::context().alloc_pd().unwrap();
    pd.probe_dmabuf().unwrap();
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT] {
        testing::fail("reg_dmabuf_mr", errno);
        assert_eq!(pd.probe_dmabuf().unwrap_err().kind(), ErrorKind::NotSupported);
    }
    assert_eq!(regions(), 0);
}

#[test]
fn a_slice_in_flight_keeps_the_memory() {
    let mut rig = Rig::new();
    let memory = Vram::new(LEN);
    let dropped = memory.dropped.clone();
    let region = register(&rig.pd, memory, 0x46, RemoteAccess::empty()).unwrap();
    let error = {
        rig.qp.post_send(op::fetch_add(region.slice(2..10).unwrap(), remote(), 1)).unwrap();
        region.revoke().unwrap_err()
    };
    assert_eq!(error.error.kind(), ErrorKind::InUse);
    drop(error);
    assert_eq!(rig.posted()[0].sges[0].addr, ADDRESS as u64 + 2);
    assert!(!dropped.load(Ordering::Relaxed));
    rig.succeed(0);
    let mut completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.old_value(), None, "the processor cannot read it");
    assert!(completion.take_buffer().is_none() && completion.take_exposed().is_none());
    let slice = completion.take_gpu_slice().unwrap();
    assert_eq!(slice.len(), 8);
    drop(slice);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn a_queue_pair_that_ends_returns_the_memory() {
    let mut rig = Rig::new();
    let memory = Vram::new(LEN);
    let dropped = memory.dropped.clone();
    let region = register(&rig.pd, memory, 0x46, RemoteAccess::empty()).unwrap();
    let slice = region.slice(..).unwrap();
    rig.qp.post_send(op::send([slice.clone(), slice])).unwrap();
    drop(region);
    assert!(!dropped.load(Ordering::Relaxed));
    drop(rig.qp);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn gpu_memory_does_not_receive_what_the_processor_would_write() {
    let mut rig = Rig::new();
    let region = register(&rig.pd, Vram::new(LEN), 0x46, RemoteAccess::empty()).unwrap();
    let slice = || region.slice(..8).unwrap();
    rig.qp.recv.processor_writes = false;
    rig.qp.post_recv(slice(), 1).unwrap();
    rig.qp.recv.processor_writes = true;
    let error = rig.qp.post_recv([slice(), slice()], 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("MLX5_SCATTER_TO_CQE=0"), "{error}");
    assert_eq!(error.into_memory().unwrap().len(), 2);
    let error = rig.qp.post_recv((rig.buffer(8), slice()), 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    let error = rig.qp.post_recv(slice().into_sink(), 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(error.into_memory().map(|returned| returned.len()), Some(8));
    rig.qp.post_recv(rig.buffer(8), 4).unwrap();

    // Responses are written so if every request is signaled.
    rig.qp.post_send(op::read(slice(), remote().slice(..8).unwrap())).unwrap();
    rig.qp.send.limits.processor_writes = true;
    let error = rig.qp.post_send(op::read(slice(), remote().slice(..8).unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    let error = rig.qp.post_send(op::read(slice().into_sink(), remote().slice(..8).unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    rig.qp.post_send(op::write(slice(), remote().slice(..8).unwrap())).unwrap();
    drop(rig);
}
