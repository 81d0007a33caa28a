//! Pages of their own: where they are, how large they are, and which threads allocate them.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{io, ptr, thread};

use memmap2::{MmapMut, MmapOptions};
use nix::errno::Errno;

use super::memory::{Host, MemoryOwner};
use super::options::{HUGE_PAGES_SIZE, NUMA_NODE, RegisterOptions};
use super::placed::{HugePages, Placed};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::os;

/// Zeroed pages of their own: a private anonymous mapping, which no other data shares.
///
/// A device pins whole pages. Memory of an allocator shares its first and last page with other
/// data; pages of their own do not.
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// use rdma::Pages;
///
/// let mut pages = Pages::new(1 << 16)?;
/// pages[..5].copy_from_slice(b"hello");
/// let buffer = pd.register(pages)?;
/// assert_eq!(buffer.address() % 4096, 0);
/// let pages: Pages = buffer.deregister()?;
/// assert_eq!(&pages[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pages {
    /// At least `len` bytes: a mapping of huge pages has whole ones.
    map: MmapMut,
    len: usize,
    pub(super) placed: Placed,
}

impl Pages {
    /// Maps pages for `len` bytes. The kernel allocates a page when it is first touched, which
    /// registration does.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no bytes are asked for; `OutOfMemory`.
    #[doc(alias = "mmap")]
    pub fn new(len: usize) -> Result<Self> {
        Self::with_options(len, &RegisterOptions::new())
    }

    /// Maps pages for `len` bytes, of the size and on the node of the options, and lets the
    /// options' threads allocate them. The other options concern the registration.
    ///
    /// Pages that are allocated here are transparent huge pages, as far as the kernel has them
    /// free, unless the administrator forbids these (`never` in
    /// `/sys/kernel/mm/transparent_hugepage/enabled`).
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no bytes are asked for; `UnsupportedOption` if the system has no pages of
    /// this size or no such node; `OutOfMemory`, also if too few huge pages are reserved, or the
    /// node has no memory left; `RefusedCall` if the kernel refuses `mbind`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::{ErrorKind, HugePages, Pages, RegisterOptions};
    ///
    /// let huge = RegisterOptions::new().huge_pages(HugePages::Size2M);
    /// let (pages, options) = match Pages::with_options(1 << 21, &huge) {
    ///     Ok(pages) => (pages, huge),
    ///     // None are reserved, or the kernel has none.
    ///     Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::UnsupportedOption(_)) => {
    ///         (Pages::new(1 << 21)?, RegisterOptions::new())
    ///     }
    ///     Err(error) => return Err(error.into()),
    /// };
    /// let buffer = pd.register_with(pages, &options)?;
    /// # let _ = buffer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_options(len: usize, options: &RegisterOptions) -> Result<Self> {
        let &RegisterOptions { huge_pages, numa_node, touch_threads, .. } = options;
        // A mapping of no bytes is one page, which memmap2 would unmap as one byte: the kernel
        // refuses that for a huge page.
        if len == 0 {
            return Err(Error::new(Verb::Allocate, ErrorKind::InvalidInput));
        }
        let out_of_memory = Error::from_errno(Verb::Allocate, libc::ENOMEM);
        // A mapping of huge pages is unmapped by whole ones.
        let mapped = huge_pages.map_or(Some(len), |huge| len.checked_next_multiple_of(huge.bytes()));
        let mut map = MmapOptions::new();
        map.len(mapped.ok_or(out_of_memory)?);
        if let Some(size) = huge_pages {
            map.huge(Some(size.bits()));
        }
        let map = map.map_anon().map_err(|error| not_mapped(&error, huge_pages))?;
        let is_touched = touch_threads != 0 || huge_pages.is_some() || numa_node.is_some();
        let mut pages = Self { map, len, placed: Placed { huge_pages, numa_node, is_touched } };
        let (start, mapped) = (NonNull::from(&mut *pages.map).cast::<u8>(), pages.map.len());
        if let Some(node) = numa_node {
            bind(start, mapped, node)?;
        }
        if is_touched {
            if huge_pages.is_none() && mapped >= STEP {
                pages.prefer_huge();
            }
            let step = huge_pages.map_or(STEP, HugePages::bytes);
            // A fault for which there is no huge page raises SIGBUS, so a kernel that cannot be
            // asked for pages leaves these to the first access, or to a device that pins them.
            let how = Touch { writes: true, may_fault: huge_pages.is_some() };
            // SAFETY: touch requires memory that is valid for reads and writes and that others
            // access atomically: the mapping is new, and nobody else has it.
            unsafe { touch(start, mapped, touch_threads, step, how) }.map_err(|_| out_of_memory)?;
        }
        Ok(pages)
    }
}

impl Pages {
    /// Asks for transparent huge pages, of which the kernel allocates and zeroes one with one fault
    /// where it has them free. All of the memory is about to be taken, so none of it is wasted.
    fn prefer_huge(&self) {
        // Only a wish: a kernel without such pages refuses it.
        #[cfg(all(target_os = "linux", not(miri)))]
        let _refused = self.map.advise(memmap2::Advice::HugePage);
    }
}

/// The error of a mapping that could not be made.
#[cold]
fn not_mapped(error: &io::Error, huge_pages: Option<HugePages>) -> Error {
    let error = Error::from_errno(Verb::Allocate, error.raw_os_error().unwrap_or(libc::ENOMEM));
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::NotSupported if huge_pages.is_some() => {
            error.with_kind(ErrorKind::UnsupportedOption(&HUGE_PAGES_SIZE))
        }
        _ => error,
    }
}

/// Puts the pages of a new mapping on a node.
fn bind(start: NonNull<u8>, len: usize, node: u32) -> Result<()> {
    os::bind(start, len, node).map_err(|errno| match errno {
        Errno::EINVAL => Error::new(Verb::Allocate, ErrorKind::UnsupportedOption(&NUMA_NODE)),
        errno => Error::of_call(Verb::Allocate, "mbind", errno as i32),
    })
}

/// The least memory of a thread, for [`touch`]: transparent huge pages are not divided.
pub(super) const STEP: usize = 2 << 20;

/// A way to touch pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Touch {
    /// For writes, which change nothing, or for reads, of memory that nobody writes.
    pub(super) writes: bool,
    /// Whether an access may fault: only the kernel is asked for the pages.
    pub(super) may_fault: bool,
}

/// Touches the pages of a range by up to `threads` threads, this one included. Threads that cannot
/// be started are done without. Each has a multiple of `step` bytes.
///
/// # Safety
///
/// The bytes are valid for reads, and for writes if `how` says so, unless `how` says that they may
/// fault. Other threads access them atomically, if at all; nobody writes them if `how` is not for
/// writes.
pub(super) unsafe fn touch(start: NonNull<u8>, len: usize, threads: usize, step: usize, how: Touch) -> nix::Result<()> {
    let each = len.div_ceil(threads.max(1)).checked_next_multiple_of(step).unwrap_or(len).max(1);
    let first = start.as_ptr().expose_provenance();
    let part = |offset: usize| {
        // SAFETY: touch_part has the same contract as this function, for a part of the range.
        unsafe { touch_part(first + offset, each.min(len - offset), how) }
    };
    thread::scope(|scope| {
        let mut others = Vec::new();
        for offset in (each..len).step_by(each) {
            let named = thread::Builder::new().name("rdma-touch".into());
            others.push(named.spawn_scoped(scope, move || part(offset)).map_err(|_| offset));
        }
        let mut result = part(0);
        for other in others {
            let ended = match other {
                Ok(thread) => thread.join().unwrap_or(Err(Errno::EFAULT)),
                Err(offset) => part(offset),
            };
            result = result.and(ended);
        }
        result
    })
}

/// # Safety
///
/// As for [`touch`], for `len` bytes, more than 0, at `start`.
unsafe fn touch_part(start: usize, len: usize, how: Touch) -> nix::Result<()> {
    let page = rdma_mem::page_size();
    let (first, end) = (start & !(page - 1), start + len);
    match os::populate(first, end.next_multiple_of(page) - first, how.writes) {
        // Before Linux 5.14, or under a seccomp filter.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => {}
        done => return done,
    }
    if how.may_fault {
        return Ok(());
    }
    for at in (first..end).step_by(page) {
        let byte = ptr::with_exposed_provenance_mut::<u8>(at.max(start));
        if how.writes {
            // SAFETY: from_ptr requires a byte that is valid for reads and writes, without accesses
            // that are not atomic: this function's contract; `at` or `start` lies in the range.
            unsafe { AtomicU8::from_ptr(byte) }.fetch_or(0, Ordering::Relaxed);
        } else {
            // Of read-only memory no atomic may be made.
            // SAFETY: read_volatile requires an initialised byte that is valid for reads, and that
            // nobody writes at the same time: this function's contract, as above.
            let _byte = unsafe { byte.read_volatile() };
        }
    }
    Ok(())
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

// SAFETY: MemoryOwner requires a valid, fixed, initialised allocation without a claim to unique
// access: a mapping is held by its address, so moving it asserts nothing; the kernel zeroes it, and
// it lives as long as the value. It is private and of no file. The parts are the value itself.
unsafe impl MemoryOwner for Pages {
    type Placement = Host;
    type Parts = Self;

    fn placed(&self) -> Placed {
        self.placed
    }

    fn into_parts(mut self) -> (NonNull<u8>, usize, Self) {
        let (start, len) = (self.map.as_mut_ptr(), self.len);
        // SAFETY: new_unchecked requires a non-null pointer: the address of a mapping is never
        // null.
        (unsafe { NonNull::new_unchecked(start) }, len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}
