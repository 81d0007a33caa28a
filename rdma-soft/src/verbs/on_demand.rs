//! On-demand regions: memory of this process that may be unmapped at any time.
//!
//! The engine treats such memory as foreign. A thread copies it through the kernel
//! (`process_vm_readv` and `process_vm_writev` on this process), so that memory that is not mapped
//! or not accessible fails a request instead of raising a signal. The thread holds no lock of the
//! device: a page fault that takes long, for instance one that `userfaultfd` handles, holds up
//! on-demand regions of the same context only.
//!
//! Peers never map such regions. Atomics on them are refused, as `odp_caps` says: the kernel has no
//! atomic operation of 64 bits on memory that may be unmapped. Where a seccomp filter forbids the
//! two calls, the capability is absent.

use std::io::{IoSlice, IoSliceMut};
use std::ptr;
use std::sync::Arc;

use nix::errno::Errno as SystemErrno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use rdma_mem::{Copier, CopyFailed};

use super::Errno;
use super::pages::Probe;
use crate::copier::CopierThreads;
use crate::engine::{CopyQueue, ForeignRegistration};
use crate::os::lock::Lock;

/// The copies of a context's on-demand regions.
#[derive(Debug, Default)]
pub(crate) struct OwnMemory(Lock<Option<CopierThreads>>);

impl OwnMemory {
    /// Returns the queue of the threads that copy; starts them if there are none.
    /// `EOPNOTSUPP` if the kernel does not let this process copy its own memory.
    pub(super) fn queue(&self) -> Result<Arc<dyn CopyQueue>, Errno> {
        if !is_supported() {
            return Err(Errno::OPNOTSUPP);
        }
        let mut threads = self.0.lock();
        let threads = match &mut *threads {
            Some(threads) => threads,
            none => none.insert(CopierThreads::start(ThroughKernel)?),
        };
        threads.queue().ok_or(Errno(libc::ENODEV))
    }
}

/// Describes an on-demand region. Address 0 with the length `SIZE_MAX` is all memory of the
/// process, an implicit region.
pub(super) fn registration(
    address: usize,
    len: usize,
    iova: u64,
    access: u32,
    copier: Arc<dyn CopyQueue>,
) -> Result<ForeignRegistration, Errno> {
    let is_implicit = address == 0 && len == usize::MAX;
    if len == 0 || (!is_implicit && isize::try_from(len).is_err()) {
        return Err(Errno::INVAL);
    }
    Ok(ForeignRegistration { address: address as u64, len, iova, access, copier })
}

/// Whether the kernel lets this process copy its own memory; a seccomp filter may forbid it.
pub(super) fn is_supported() -> bool {
    static IS: Probe = Probe::new();
    IS.get(|| {
        let (mut from, mut to) = ([1_u8], [0_u8]);
        let (from, to) = (ptr::from_mut(&mut from).expose_provenance(), ptr::from_mut(&mut to).expose_provenance());
        let mut byte = [0];
        // SAFETY: store requires memory that may be written: the local byte, which nothing uses.
        fetch(from, &mut byte).is_ok() && unsafe { store(to, &byte) }.is_ok()
    })
}

/// Fills `bytes` with the memory at `address`.
fn fetch(address: usize, bytes: &mut [u8]) -> Result<(), CopyFailed> {
    let len = bytes.len();
    let there = RemoteIoVec { base: address, len };
    moved(process_vm_readv(Pid::this(), &mut [IoSliceMut::new(bytes)], &[there]), len)
}

/// Copies `bytes` to the memory at `address`.
///
/// # Safety
///
/// What is mapped there may be written.
unsafe fn store(address: usize, bytes: &[u8]) -> Result<(), CopyFailed> {
    let there = RemoteIoVec { base: address, len: bytes.len() };
    moved(process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &[there]), bytes.len())
}

/// The outcome of a copy of `len` bytes; the kernel stops at the first page that it cannot access.
fn moved(result: Result<usize, SystemErrno>, len: usize) -> Result<(), CopyFailed> {
    match result {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) | Err(SystemErrno::EFAULT) => Err(CopyFailed::Fault),
        Err(_) => Err(CopyFailed::Ended),
    }
}

/// Copies this process's own memory through the kernel.
#[derive(Debug)]
struct ThroughKernel;

/// Converts an address; one that no pointer holds is not mapped.
fn to_address(address: u64) -> Result<usize, CopyFailed> {
    usize::try_from(address).map_err(|_| CopyFailed::Fault)
}

impl Copier for ThroughKernel {
    unsafe fn read(&self, address: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        fetch(to_address(address)?, &mut bytes)?;
        Ok(bytes)
    }

    unsafe fn write(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        // SAFETY: store requires memory that may be written: this function's condition.
        unsafe { store(to_address(address)?, &bytes) }?;
        Ok(bytes)
    }
}
