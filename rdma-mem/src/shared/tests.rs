//! Sharing, hiding, and peers that lie.

use std::fs::File;
use std::sync::atomic::Ordering;

use super::*;
use crate::word::{load_u64, store_u64};

fn word(base: *mut u8) -> *mut u64 {
    base.cast()
}

#[test]
fn a_mapping_sees_what_the_owner_writes() {
    let memory = SharedMemory::new(10_000).unwrap();
    assert_eq!(memory.len(), 10_000);
    assert_eq!(memory.as_ptr().addr() % 4096, 0);
    let peer = Mapping::map(memory.fd().unwrap(), 10_000).unwrap();
    // SAFETY: the first word of live, page-aligned mappings.
    unsafe { store_u64(word(memory.as_ptr()), 42, Ordering::Release) };
    // SAFETY: as above.
    let seen = unsafe { load_u64(word(peer.as_ptr()), Ordering::Acquire) };
    assert_eq!(seen, 42);
}

#[test]
fn private_memory_keeps_contents_and_address_but_not_peers() {
    let mut memory = SharedMemory::new(4096 * 3).unwrap();
    let base = memory.as_ptr();
    let peer = Mapping::map(memory.fd().unwrap(), 4096 * 3).unwrap();
    let (ours, theirs) = (word(base.wrapping_add(8192)), word(peer.as_ptr().wrapping_add(8192)));
    // SAFETY: a word in the middle of live, aligned mappings; so in the blocks below.
    unsafe { store_u64(theirs, 7, Ordering::Release) };
    memory.make_private().unwrap();
    memory.make_private().unwrap();
    assert_eq!(memory.as_ptr(), base);
    assert!(memory.fd().is_none());
    assert!(find(base.addr(), 1).is_none());
    // SAFETY: as above.
    let seen = unsafe { load_u64(ours, Ordering::Acquire) };
    assert_eq!(seen, 7);
    // SAFETY: as above.
    unsafe { store_u64(theirs, 8, Ordering::Release) };
    // SAFETY: as above.
    let seen = unsafe { load_u64(ours, Ordering::Acquire) };
    assert_eq!(seen, 7);
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
    assert_eq!(SharedMemory::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(SharedMemory::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(SharedMemory::new(1 << 60).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
}

#[test]
fn the_memfd_cannot_shrink() {
    let memory = SharedMemory::new(4096).unwrap();
    let file = File::from(memory.fd().unwrap().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
}

#[test]
fn a_peers_descriptor_is_not_trusted() {
    // Too short.
    let memory = SharedMemory::new(4096).unwrap();
    let error = Mapping::map(memory.fd().unwrap(), 4097).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    // Not sealed.
    // SAFETY: memfd_create wants a NUL-terminated name and known flags.
    let fd = unsafe { libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: just opened, owned by nobody.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = File::from(fd);
    file.set_len(8192).unwrap();
    assert_eq!(Mapping::map(file.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
    // All sealed, but with nothing in it: who maps it would bring in the pages, and pay for them.
    // SAFETY: as above.
    let fd = unsafe { libc::memfd_create(c"hollow".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: just opened, owned by nobody.
    let hollow = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    hollow.set_len(1 << 20).unwrap();
    // SAFETY: F_ADD_SEALS takes an int.
    assert_eq!(unsafe { libc::fcntl(hollow.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }, 0);
    assert_eq!(Mapping::map(hollow.as_fd(), 1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidData);
    // Not a memfd.
    let null = File::open("/dev/null").unwrap();
    assert_eq!(Mapping::map(null.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_forked_childs_drop_leaves_the_parent_alone() {
    let memory = SharedMemory::new(4096).unwrap();
    let mapping = Mapping::map(memory.fd().unwrap(), 4096).unwrap();
    // SAFETY: the child calls nothing but the two drops, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(memory);
        drop(mapping);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // SAFETY: the first word of a live mapping.
    unsafe { store_u64(word(mapping.as_ptr()), 1, Ordering::Release) };
    assert!(find(memory.as_ptr().addr(), 4096).is_some());
}
