//! Maps of files. A device accesses them while other processes may change the file's length: the
//! software device, which runs in this process, does so by copies of the kernel (`MAY_FAULT`).

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memmap2::{Mmap, MmapRaw};
use rdma_mem::SharedSliceMut;

use super::memory::{Host, MemoryOwner, SourceOwner};
use crate::error::{Error, Result, Verb};

/// A file that is mapped to be exposed: devices, peers and other processes read and write it.
///
/// A write to the map changes the file. The map is never lent as bytes, because other
/// processes may write to the file: [`register`](crate::ProtectionDomain::register) and
/// [`revoke`](crate::ExposedRegion::revoke) fail with `NotSupported`.
///
/// `soft0` has the kernel copy to and from the map, which is slower than a copy of its own. Only
/// reliable connections reach the map there: unreliable ones and datagrams do not, and atomic
/// operations are refused. Registration fails with `NotSupported` where a seccomp filter forbids
/// `process_vm_readv` or `process_vm_writev` on this process. Kernels since 6.5 register a writable
/// map with a NIC only if the file is in tmpfs or hugetlbfs (`Os` with `EFAULT` otherwise).
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&"soft0".parse()?)?.context.alloc_pd()?;
/// use rdma::{FileMap, RemoteAccess};
///
/// let file = tempfile::tempfile()?;
/// file.set_len(1 << 16)?;
/// // SAFETY: the file has no name, and no other process has it: nobody shortens it.
/// let map = unsafe { FileMap::new(&file)? };
/// let table = pd.register_exposed(map, RemoteAccess::READ | RemoteAccess::WRITE)?;
/// table.copy_in(0, b"in the file")?;
/// let mut bytes = [0; 11];
/// std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
/// assert_eq!(&bytes, b"in the file");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileMap(MmapRaw);

impl FileMap {
    /// Maps a whole file, which must be open for reading and writing.
    ///
    /// # Errors
    ///
    /// Errors of mmap(2), as those of a file that cannot be mapped.
    ///
    /// # Safety
    ///
    /// Until the value is dropped:
    ///
    /// * No process shortens the file. An access of this process behind the end raises `SIGBUS`. A
    ///   request of the software device then ends with an access error, and a NIC, which has pinned
    ///   the pages, goes on with pages that are in no file.
    /// * Code of this process accesses the bytes of the file by this value and its regions, by
    ///   functions of [`rdma_mem`] on another map, or by system calls. Other processes may read and
    ///   write them at any time.
    #[doc(alias = "mmap")]
    pub unsafe fn new(file: &File) -> Result<Self> {
        MmapRaw::map_raw(file).map(Self).map_err(|error| refused(&error))
    }

    /// The bytes, for the copies and reductions of [`rdma_mem`].
    #[must_use]
    pub fn bytes(&self) -> SharedSliceMut<'_> {
        // SAFETY: from_raw requires bytes that are readable and writable, without plain accesses,
        // for the borrow of `self`: the map is writable, and lives as long; other code of this
        // process accesses the file as `new` demands, and no reference to the map exists (M5).
        unsafe { SharedSliceMut::from_raw(self.0.as_mut_ptr(), self.0.len()) }
    }
}

fn refused(error: &io::Error) -> Error {
    Error::from_errno(Verb::Allocate, error.raw_os_error().unwrap_or(libc::EINVAL))
}

// SAFETY: MemoryOwner requires memory that is valid, initialised, in place, and accessed by others
// only as rdma_mem does until make_private succeeds: a map lives as long as the parts, which are
// the value; its file has bytes that are initialised, which nobody shortens, and which others
// access as `FileMap::new` demands; make_private never succeeds.
unsafe impl MemoryOwner for FileMap {
    type Placement = Host;
    type Parts = Self;
    const MAY_FAULT: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        // SAFETY: new_unchecked requires a non-null pointer: the address of a mapping is never
        // null.
        (unsafe { NonNull::new_unchecked(self.0.as_mut_ptr()) }, self.0.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    /// Fails: other processes access the file for as long as they want.
    fn make_private(_: &mut Self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A file that is mapped to be a source: nobody changes it.
///
/// On `soft0`, reliable connections alone reach the map, and a seccomp filter may forbid it, as for
/// a [`FileMap`].
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&"soft0".parse()?)?.context.alloc_pd()?;
/// use std::fs::File;
///
/// use rdma::{FileSource, RemoteAccess};
///
/// # let program = std::env::current_exe()?;
/// // SAFETY: nobody writes to a program that runs, and the kernel refuses to.
/// let map = unsafe { FileSource::new(&File::open(program)?)? };
/// let source = pd.register_source(map, RemoteAccess::READ)?;
/// assert_eq!(&source[..4], b"\x7fELF");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSource(Mmap);

impl FileSource {
    /// Maps a whole file, which must be open for reading.
    ///
    /// # Errors
    ///
    /// Errors of mmap(2), as those of a file that cannot be mapped.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, no process writes to the file or shortens it. The program has
    /// its bytes as `&[u8]`, and behind its end an access of this process raises `SIGBUS`, also
    /// that of a post of [`copied`](crate::op::Work::copied) data; any other request of the
    /// software device ends with an access error.
    #[doc(alias = "mmap")]
    pub unsafe fn new(file: &File) -> Result<Self> {
        // SAFETY: Mmap::map requires a file that nobody changes: this function's contract.
        unsafe { Mmap::map(file) }.map(Self).map_err(|error| refused(&error))
    }
}

// SAFETY: SourceOwner requires bytes that stay in place and are not written: those of a map, whose
// file nobody changes, by the contract of `FileSource::new`.
unsafe impl SourceOwner for FileSource {
    const MAY_FAULT: bool = true;

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
