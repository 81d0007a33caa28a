//! Tests of sharing, of making memory private, and of peers that send wrong descriptors.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use rdma_test_support::holds_in_child;

use super::*;
use crate::word::{load_u64, store_u64};

trait Words {
    fn base(&self) -> (*mut u8, usize);

    fn address(&self, offset: usize) -> *mut u64 {
        let (base, len) = self.base();
        assert!(offset % 8 == 0 && offset + 8 <= len);
        base.wrapping_add(offset).cast()
    }

    fn store(&self, offset: usize, value: u64) {
        // SAFETY: store_u64 requires a valid, aligned word without plain accesses: `address` checks
        // that the word is aligned and in the mapping that `self` owns, and no reference to it is
        // made.
        unsafe { store_u64(self.address(offset), value, Ordering::Release) };
    }

    fn load(&self, offset: usize) -> u64 {
        // SAFETY: load_u64 requires a valid, aligned word without plain accesses: `address` checks
        // that the word is aligned and in the mapping that `self` owns, and no reference to it is
        // made.
        unsafe { load_u64(self.address(offset), Ordering::Acquire) }
    }
}

impl Words for SharedMemory {
    fn base(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

impl Words for Mapping {
    fn base(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

#[test]
fn a_mapping_sees_what_the_owner_writes() {
    let memory = SharedMemory::new(10_000).unwrap();
    assert_eq!(memory.len(), 10_000);
    assert_eq!(memory.as_ptr().addr() % 4096, 0);
    let peer = Mapping::map(memory.fd().unwrap(), 10_000).unwrap();
    memory.store(0, 42);
    assert_eq!(peer.load(0), 42);
}

#[test]
fn private_memory_keeps_contents_and_address_but_not_peers() {
    let mut memory = SharedMemory::new(4096 * 3).unwrap();
    let base = memory.as_ptr();
    let peer = Mapping::map(memory.fd().unwrap(), 4096 * 3).unwrap();
    peer.store(8192, 7);
    memory.make_private().unwrap();
    memory.make_private().unwrap();
    assert_eq!(memory.as_ptr(), base);
    assert!(memory.fd().is_none());
    assert!(find(base.addr(), 1).is_none());
    assert_eq!(memory.load(8192), 7);
    peer.store(8192, 8);
    assert_eq!(memory.load(8192), 7);
}

#[test]
fn the_registry_knows_exactly_the_live_ranges() {
    let memory = SharedMemory::new(8192).unwrap();
    let base = memory.as_ptr().addr();
    assert_eq!(find(base, 8192).unwrap().base(), base);
    assert_eq!(find(base + 100, 8092).unwrap().base(), base);
    assert!(find(base + 100, 8093).is_none());
    assert!(find(base, usize::MAX).is_none());
    assert!(find(base + 8192, 1).is_none_or(|other| other.base() != base));
    drop(memory);
    assert!(find(base, 8192).is_none_or(|other| other.len() >= 8192));
}

#[test]
fn odd_sizes_are_errors() {
    assert!(matches!(SharedMemory::new(0), Err(SharedMemoryError::Size)));
    assert!(matches!(SharedMemory::new(usize::MAX), Err(SharedMemoryError::Size)));
    assert_eq!(SharedMemory::new(1 << 60).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    let refused = |result: Result<(), SharedMemoryError>, call: &str| {
        matches!(result, Err(SharedMemoryError::System { call: found, error })
            if found == call && error.raw_os_error() == Some(libc::EFBIG))
    };
    assert!(holds_in_child(|| {
        let limited = setrlimit(Resource::RLIMIT_FSIZE, 8192, 8192).is_ok();
        limited
            && SharedMemory::new(8192).is_ok()
            && refused(SharedMemory::new(8193).map(drop), "fallocate")
            && refused(Mapping::create(8193).map(drop), "ftruncate")
            && refused(Segment::new(8193).map(drop), "ftruncate")
    }));
}

#[test]
fn errors_name_the_call_and_keep_errno_and_kind() {
    let error = SharedMemoryError::system("memfd_create")(Errno::EPERM);
    assert_eq!(error.to_string(), "memfd_create: Operation not permitted (os error 1)");
    assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::EPERM));
    let error = io::Error::from(SharedMemory::new(0).unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_memfd_cannot_shrink() {
    let memory = SharedMemory::new(4096).unwrap();
    let file = File::from(memory.fd().unwrap().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
}

#[test]
fn a_memfd_cannot_be_made_executable() {
    let plain = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    if memfd_create(c"test", plain | MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL)).is_err() {
        println!("SKIP the kernel is older than 6.3");
        return;
    }
    let memory = SharedMemory::new(4096).unwrap();
    let segment = Segment::new(4096).unwrap();
    for fd in [memory.fd().unwrap(), segment.fd()] {
        let file = File::from(fd.try_clone_to_owned().unwrap());
        assert_eq!(file.metadata().unwrap().mode() & 0o111, 0);
        assert!(file.set_permissions(Permissions::from_mode(0o777)).is_err());
    }
}

/// A memfd of the given size, without pages and without seals.
fn hollow(len: u64) -> File {
    let fd = memfd_create(c"hollow", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.set_len(len).unwrap();
    file
}

#[test]
fn a_peers_descriptor_is_not_trusted() {
    let refusal = |fd: BorrowedFd<'_>, len| match Mapping::map(fd, len) {
        Err(SharedMemoryError::Untrusted(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let memory = SharedMemory::new(4096).unwrap();
    assert_eq!(refusal(memory.fd().unwrap(), 4097), "is shorter than the peer said");
    let file = hollow(1 << 20);
    assert_eq!(refusal(file.as_fd(), 1 << 20), "is not a sealed memfd");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
    assert_eq!(refusal(file.as_fd(), 1 << 20), "is not allocated");
    let null = File::open("/dev/null").unwrap();
    assert_eq!(refusal(null.as_fd(), 4096), "is not a sealed memfd");
    // Huge pages come from a pool, which may be empty.
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
    if let Ok(fd) = memfd_create(c"huge", flags) {
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        assert_eq!(refusal(fd.as_fd(), 4096), "is not of ordinary pages");
    }
}

#[test]
fn a_sparse_file_is_allocated_piece_by_piece() {
    let (memory, file) = Mapping::create(1 << 20).unwrap();
    let file = File::from(file);
    let blocks = || file.metadata().unwrap().blocks();
    assert_eq!(blocks(), 0);
    memory.allocate(5000, 4096).unwrap();
    assert!(blocks() == 16 || blocks() == 0, "two pages, or an old kernel");
    let peer = Mapping::map_sparse(file.as_fd(), 1 << 20).unwrap();
    peer.store(1 << 19, 7);
    assert_eq!(memory.load(1 << 19), 7);
    assert_eq!(memory.load((1 << 20) - 8), 0);
    for (offset, len) in [(1 << 20, 1), (0, (1 << 20) + 1), (usize::MAX, 2)] {
        assert!(matches!(memory.allocate(offset, len), Err(SharedMemoryError::Size)));
    }
}

#[test]
fn a_forked_childs_drop_leaves_the_parent_alone() {
    let memory = SharedMemory::new(4096).unwrap();
    let mapping = Mapping::map(memory.fd().unwrap(), 4096).unwrap();
    let address = memory.as_ptr().addr();
    let mut ours = Some((memory, mapping));
    assert!(holds_in_child(|| {
        drop(ours.take());
        find(address, 4096).is_none()
    }));
    let (_memory, mapping) = ours.unwrap();
    mapping.store(0, 1);
    assert!(find(address, 4096).is_some());
}

/// Gives this process's next child the pid 1, in a PID namespace of its own.
fn new_pid_namespace(more: libc::c_int) -> bool {
    // SAFETY: unshare takes flags, and these change nothing that this thread has open or mapped.
    unsafe { libc::unshare(libc::CLONE_NEWPID | more) == 0 }
}

#[test]
fn a_child_with_its_parents_pid_is_still_another_process() {
    if !holds_in_child(|| new_pid_namespace(libc::CLONE_NEWUSER)) {
        println!("skipped: this kernel or container gives no PID namespace");
        return;
    }
    assert!(holds_in_child(|| {
        new_pid_namespace(libc::CLONE_NEWUSER)
            && holds_in_child(|| {
                let memory = SharedMemory::new(4096).unwrap();
                let mapping = Mapping::map(memory.fd().unwrap(), 4096).unwrap();
                let address = memory.as_ptr().addr();
                std::process::id() == 1
                    && memory.pages.is_ours()
                    && new_pid_namespace(0)
                    && holds_in_child(|| {
                        let strange = !memory.pages.is_ours() && !mapping.pages.is_ours();
                        std::process::id() == 1 && strange && find(address, 4096).is_none()
                    })
            })
    }));
}
