//! Checks that memory to be registered is mapped with the access it needs.
//!
//! A kernel driver pins the pages of a region and fails with `EFAULT` if a page is missing or lacks
//! the access right. This device pins nothing but fails in the same cases, because consumers rely
//! on the error: for instance, registration of device memory must fail so that they fall back to
//! another method.

use std::ffi::c_void;
use std::io::IoSliceMut;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use nix::errno::Errno as SystemErrno;
use nix::sys::mman::{MmapAdvise, madvise};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rdma_mem::page_size;

use super::Errno;
use crate::os::Named;

const FAULT: Errno = Errno(libc::EFAULT);

/// Makes the kernel fault in every page of a range, writable if `write`. `EFAULT` if a page is
/// missing or lacks the access right.
pub(crate) fn populate(address: usize, len: usize, write: bool) -> Result<(), Errno> {
    let page = page_size();
    let start = address & !(page - 1);
    let end = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or(Errno::INVAL)?;
    if can_populate() {
        advise(start, end - start, write)
    } else {
        // Reading one byte of each page shows at least that the page is readable.
        (start..end).step_by(page).try_for_each(read_byte)
    }
}

fn advise(start: usize, len: usize, write: bool) -> Result<(), Errno> {
    let advice = if write { MmapAdvise::MADV_POPULATE_WRITE } else { MmapAdvise::MADV_POPULATE_READ };
    let address = NonNull::new(ptr::with_exposed_provenance_mut::<c_void>(start)).ok_or(FAULT)?;
    loop {
        // SAFETY: `madvise` requires advice that breaks no memory in use: populating changes no
        // contents and no mapping, whatever is mapped in the range.
        match unsafe { madvise(address, len, advice) } {
            Ok(()) => return Ok(()),
            Err(SystemErrno::EAGAIN | SystemErrno::EINTR) => {}
            // All other errors become `EFAULT`: `ENOMEM` means an unmapped range, but also that the
            // host's memory or the limit of a control group is exhausted.
            Err(_) => return Err(FAULT),
        }
    }
}

/// The result of a probe of the kernel. Threads may probe at the same time, so that a child that is
/// forked during a probe does not wait for a thread of its parent.
#[derive(Debug)]
pub(super) struct Probe(AtomicU8);

impl Probe {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(Self::UNKNOWN))
    }

    /// The result of the first probe that has ended.
    pub(super) fn get(&self, probe: impl FnOnce() -> bool) -> bool {
        if self.0.load(Ordering::Relaxed) == Self::UNKNOWN {
            self.0.store(if probe() { Self::YES } else { Self::NO }, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed) == Self::YES
    }
}

/// Whether the kernel supports the two kinds of advice (since Linux 5.14; a seccomp filter may
/// forbid them). Tried once, on a mapped page: the stack.
fn can_populate() -> bool {
    static CAN: Probe = Probe::new();
    CAN.get(|| {
        let here = 0_u64;
        let page = page_size();
        advise(ptr::from_ref(&here).addr() & !(page - 1), page, false).is_ok()
    })
}

/// Reads a byte of this process through the kernel, so that an unreadable byte gives `EFAULT`
/// instead of a signal.
fn read_byte(address: usize) -> Result<(), Errno> {
    let mut byte = [0];
    let there = RemoteIoVec { base: address, len: 1 };
    match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut byte)], &[there]) {
        Ok(1) => Ok(()),
        Ok(_) | Err(SystemErrno::EFAULT) => Err(FAULT),
        Err(errno) => Ok(Err(errno).named("process_vm_readv")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_keeps_its_first_result() {
        for result in [true, false] {
            let probe = Probe::new();
            assert_eq!(probe.get(|| result), result);
            assert_eq!(probe.get(|| panic!("probed again")), result);
        }
    }

    fn map(pages: usize, protection: i32) -> *mut c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(ptr::null_mut(), pages * page_size(), protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        address
    }

    #[test]
    fn memory_that_is_there() {
        let memory = vec![0_u8; 3 * page_size() + 5];
        assert_eq!(populate(memory.as_ptr().addr() + 1, memory.len() - 1, true), Ok(()));
        assert_eq!(populate("text".as_ptr().addr(), 4, false), Ok(()));
    }

    #[test]
    fn memory_that_is_not_there_or_not_writable() {
        let page = page_size();
        let hole = map(3, libc::PROT_READ);
        let second = hole.wrapping_byte_add(page);
        assert_eq!(populate(hole.addr(), 3 * page, false), Ok(()));
        assert_eq!(populate(hole.addr(), 3 * page, true), Err(FAULT));
        // SAFETY: a page of a mapping that nobody else knows.
        assert_eq!(unsafe { libc::munmap(second, page) }, 0);
        assert_eq!(populate(hole.addr(), 3 * page, false), Err(FAULT));
        assert_eq!(populate(hole.addr() + 7, 9, false), Ok(()));
        assert_eq!(read_byte(hole.addr()), Ok(()));
        assert_eq!(read_byte(second.addr()), Err(FAULT));
        assert_eq!(populate(usize::MAX - 10, 100, false), Err(Errno::INVAL));
    }
}
