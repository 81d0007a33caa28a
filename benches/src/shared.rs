//! Memory pages that both processes of a comparison share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::pair::{Channel, Role};

/// A shared mapping of whole pages, initially zero.
#[derive(Debug)]
pub struct SharedPages {
    map: MmapRaw,
    file: File,
}

impl SharedPages {
    /// Creates pages and makes all of them present, so that no page fault falls into a measurement.
    ///
    /// # Errors
    ///
    /// The error of `memfd_create`, `ftruncate` or `mmap`.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create(c"rdma-benches", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(len as u64)?;
        Self::map(file)
    }

    /// Creates pages like [`new`](Self::new), huge ones if the kernel gives them.
    ///
    /// # Errors
    ///
    /// The error of `memfd_create`, `ftruncate` or `mmap`.
    pub fn huge(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create(c"rdma-benches", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(len as u64)?;
        let map = MmapOptions::new().map_raw(&file)?;
        // A kernel without huge pages for shared memory refuses this.
        drop(map.advise(Advice::HugePage));
        map.advise(Advice::PopulateWrite)?;
        Ok(Self { map, file })
    }

    /// A path by which another process can open these pages.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Opens the pages that another process created, by its [`Self::path`].
    ///
    /// # Errors
    ///
    /// The error of `open` or `mmap`.
    pub fn open(path: &str) -> io::Result<Self> {
        Self::map(File::options().read(true).write(true).open(path)?)
    }

    /// Creates pages in the leader, and maps them in the follower.
    ///
    /// # Errors
    ///
    /// The error of the channel, `memfd_create`, `ftruncate`, `open` or `mmap`.
    pub fn connect(role: Role, channel: &mut Channel, len: usize) -> io::Result<Self> {
        match role {
            Role::Leader => {
                let pages = Self::new(len)?;
                channel.send(&pages.path())?;
                channel.receive()?;
                Ok(pages)
            }
            Role::Follower => {
                let pages = Self::open(&channel.receive()?)?;
                channel.send("mapped")?;
                Ok(pages)
            }
        }
    }

    fn map(file: File) -> io::Result<Self> {
        let map = MmapOptions::new().populate().map_raw(&file)?;
        Ok(Self { map, file })
    }

    /// Pointer to the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The first word of cache line `line`.
    ///
    /// # Panics
    ///
    /// If the line lies outside the mapping.
    #[must_use]
    pub fn word(&self, line: usize) -> &AtomicU64 {
        let offset = line * 64;
        assert!(offset + 8 <= self.len(), "line {line} lies outside");
        // SAFETY: from_ptr requires an aligned word that is valid while `self` is borrowed, and
        // only atomic accesses to it. The mapping begins at a page, and the offset is a multiple of
        // 64 inside it. A page whose words are used is used in no other way.
        unsafe { AtomicU64::from_ptr(self.as_ptr().wrapping_add(offset).cast()) }
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
        assert_eq!(theirs.len(), 4096);
    }
}
