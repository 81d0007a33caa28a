//! Whether memory that is to be registered is there.
//!
//! A kernel driver pins the pages of a region, and fails with `EFAULT` where there are none, or
//! where they lack the right. Here nothing is pinned, but the answer is the same: consumers rely on
//! it (device memory, for instance, must fail so that they take another way).

use std::ptr;
use std::sync::OnceLock;

use super::Errno;

/// Makes the kernel bring in every page of a range, writable if so asked.
pub(crate) fn populate(address: usize, len: usize, write: bool) -> Result<(), Errno> {
    let page = page_size();
    let start = address & !(page - 1);
    let end = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or(Errno::INVAL)?;
    if can_populate() {
        advise(start, end - start, write)
    } else {
        // Older kernels: a copy of one byte of each page shows at least that it can be read.
        (start..end).step_by(page).try_for_each(|page| if readable(page) { Ok(()) } else { Err(Errno(libc::EFAULT)) })
    }
}

fn page_size() -> usize {
    // SAFETY: `sysconf` has no requirement.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn advise(start: usize, len: usize, write: bool) -> Result<(), Errno> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        let address = ptr::with_exposed_provenance_mut(start);
        // SAFETY: populating changes no contents and no mapping, whatever lies there.
        if unsafe { libc::madvise(address, len, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => {}
            // The limit of a control group, or out of memory while pages are brought in; unmapped
            // ranges say the same.
            _ => return Err(Errno(libc::EFAULT)),
        }
    }
}

/// Whether the kernel has these two kinds of advice (5.14): tried once, on memory that is certainly
/// there.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let here = 0_u64;
        let page = page_size();
        advise(ptr::from_ref(&here).addr() & !(page - 1), page, false).is_ok()
    })
}

/// Whether a byte of our own can be read: the kernel does the reading, so that nothing is raised if
/// it cannot.
fn readable(address: usize) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: `getpid` has no requirement.
    let pid = unsafe { libc::getpid() };
    // SAFETY: `here` is valid for writes of its byte; the other address may be anything.
    unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pages: usize, protection: i32) -> *mut libc::c_void {
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
        assert_eq!(populate(hole.addr(), 3 * page, true), Err(Errno(libc::EFAULT)));
        // SAFETY: a page of a mapping that nobody else knows.
        assert_eq!(unsafe { libc::munmap(second, page) }, 0);
        assert_eq!(populate(hole.addr(), 3 * page, false), Err(Errno(libc::EFAULT)));
        assert_eq!(populate(hole.addr() + 7, 9, false), Ok(()));
        assert!(readable(hole.addr()));
        assert!(!readable(second.addr()));
        assert_eq!(populate(usize::MAX - 10, 100, false), Err(Errno::INVAL));
    }
}
