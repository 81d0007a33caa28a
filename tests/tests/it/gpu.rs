//! Memory of a GPU, on the device under test. The GPU is played by a memory file: its addresses are
//! reserved and cannot be accessed by the processor, and the device has a mapping elsewhere. So
//! everything above the registration is what it is with a GPU.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

use rdma::op;
use rdma::{ErrorKind, ExposedRegion, Gpu, MemoryOwner, RemoteAccess};
use rdma_mem::SharedMemory;
use rdma_tests::{Options, Side, all_rights, buffer, pair, pattern, read, skipped_on_iwarp, wait};

const LEN: usize = 1 << 16;

/// Addresses without memory, as a GPU's are for the processor, and the memory that they stand for.
struct Vram {
    addresses: NonNull<u8>,
    memory: SharedMemory,
}

// SAFETY: the reservation belongs to the value, and nobody accesses it.
unsafe impl Send for Vram {}

impl Vram {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap without MAP_FIXED replaces no mapping.
        let addresses = unsafe { libc::mmap(ptr::null_mut(), LEN, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(addresses, libc::MAP_FAILED);
        Self { addresses: NonNull::new(addresses.cast()).unwrap(), memory: SharedMemory::new(LEN).unwrap() }
    }

    /// The contents, to be read and written without a mapping.
    fn contents(&self) -> File {
        File::from(self.memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap())
    }
}

impl Drop for Vram {
    fn drop(&mut self) {
        // SAFETY: munmap requires a mapping that nobody uses: the reservation of `new`.
        unsafe { libc::munmap(self.addresses.as_ptr().cast(), LEN) };
    }
}

// SAFETY: MemoryOwner requires memory that stays where it is while the parts live: the reservation
// and the memory file's mapping do. No reference to either exists.
unsafe impl MemoryOwner for Vram {
    type Placement = Gpu;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.addresses, LEN, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

/// A connected pair; the second side has GPU memory. `None` on iWARP.
fn rig(access: RemoteAccess) -> Option<(Side, Side, ExposedRegion<Gpu>, File)> {
    let (a, b) = pair(Options::default());
    if skipped_on_iwarp(&b.pd.context(), "siw ignores the address that a region shall have") {
        return None;
    }
    let vram = Vram::new();
    let (contents, mapping) = (vram.contents(), NonNull::new(vram.memory.as_ptr()).unwrap());
    // SAFETY: register_mapped requires the owner's memory at `mapping`, without references to it:
    // the memory file that stands for the GPU's memory is mapped there, as long as the owner lives.
    let region = unsafe { b.pd.register_mapped(vram, mapping, access) }.unwrap();
    Some((a, b, region, contents))
}

/// The first bytes of the memory from an offset on.
fn bytes<const N: usize>(contents: &File, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    contents.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn a_peer_writes_and_reads_memory_that_no_processor_can_access() {
    let Some((mut a, _b, region, contents)) = rig(all_rights()) else { return };
    let content = pattern(5000, 7);
    let remote = region.remote(70..5070).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, &content), remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    assert_eq!(bytes::<5000>(&contents, 70)[..], content[..]);
    assert_eq!((bytes::<70>(&contents, 0), bytes::<70>(&contents, 5070)), ([0; 70], [0; 70]));
    assert_eq!(read(&mut a, remote), content);
}

#[test]
fn messages_go_from_and_to_memory_that_no_processor_can_access() {
    let Some((mut a, mut b, region, contents)) = rig(RemoteAccess::empty()) else { return };
    b.qp.post_recv(region.slice(100..200).unwrap(), 1).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"to the GPU"))).unwrap();
    let received = wait(&mut b.receives);
    assert_eq!((received.status, received.token, received.byte_len), (Ok(()), 1, 10));
    assert_eq!(&bytes::<10>(&contents, 100), b"to the GPU");

    contents.write_all_at(b"from the GPU", 3000).unwrap();
    a.qp.post_recv(a.pd.allocate(64).unwrap(), 2).unwrap();
    b.qp.post_send(op::send(region.slice(3000..3012).unwrap())).unwrap();
    let received = wait(&mut a.receives);
    assert_eq!((received.status, received.byte_len), (Ok(()), 12));
    assert_eq!(&received.buffer()[..12], b"from the GPU");
}

#[test]
fn addresses_that_no_driver_answers_for_are_not_registered() {
    let (a, _b) = pair(Options::default());
    let failed = a.pd.register_peer_memory(Vram::new(), RemoteAccess::empty()).unwrap_err();
    assert!(failed.object.into_owner::<Vram>().is_ok(), "{}", failed.error);
    a.pd.register(Vram::new()).unwrap_err();
}

#[test]
fn a_device_without_dma_bufs_says_so_and_the_memory_comes_back() {
    let (a, _b) = pair(Options::default());
    if a.pd.probe_dmabuf().is_ok() {
        return rdma_tests::skip("the device imports dma-bufs");
    }
    let vram = Vram::new();
    let file = vram.contents();
    // SAFETY: register_dmabuf requires a dma-buf of the memory: the device cannot import any.
    let failed = unsafe { a.pd.register_dmabuf(vram, file.as_fd(), 0, RemoteAccess::READ) }.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotSupported, "{failed}");
    assert!(failed.error.to_string().contains("soft0, rxe and siw cannot"), "{failed}");
    assert!(failed.object.into_owner::<Vram>().is_ok());
}
