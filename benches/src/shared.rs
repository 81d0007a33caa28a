//! Pages that both processes of a comparison see.
//!
//! Invariant 1: `base` is a shared mapping of `len` bytes that lives as long as the value, and is unmapped once.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A shared mapping of whole pages, zero at first.
#[derive(Debug)]
pub struct SharedPages {
    base: NonNull<u8>,
    len: usize,
    file: File,
}

impl SharedPages {
    /// New pages, all of them present, so that no fault falls into a measurement.
    ///
    /// # Errors
    ///
    /// What `memfd_create`, `ftruncate` or `mmap` reports.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name is a NUL-terminated string literal that outlives the call.
        let fd = unsafe { libc::memfd_create(c"rdma-benches".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is an open descriptor that nothing else owns: `memfd_create` just returned it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(u64::try_from(len).map_err(io::Error::other)?)?;
        Self::map(file, len)
    }

    /// How another process may open these pages.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The pages that another process made, by its [`Self::path`].
    ///
    /// # Errors
    ///
    /// What opening or mapping reports.
    pub fn open(path: &str) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Self::map(file, len)
    }

    fn map(file: File, len: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours; `file` is open.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base, len, file })
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first word of cache line `line`.
    ///
    /// # Panics
    ///
    /// When the line lies outside.
    #[must_use]
    pub fn word(&self, line: usize) -> &AtomicU64 {
        let offset = line * 64;
        assert!(offset + 8 <= self.len, "line {line} lies outside");
        // SAFETY: `offset` lies inside the mapping.
        let word = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: `word` is 64-byte aligned (the mapping is page-aligned), lies inside the mapping (1), which outlives the
        // borrow of `self`; pages whose words are used are accessed in no other way.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: (1): the mapping is ours, whole, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_ends_see_the_same_word() {
        let ours = SharedPages::new(4096).unwrap();
        let theirs = SharedPages::open(&ours.path()).unwrap();
        ours.word(3).store(7, Ordering::Release);
        assert_eq!(theirs.word(3).load(Ordering::Acquire), 7);
        assert_eq!((theirs.len(), theirs.is_empty()), (4096, false));
    }
}
