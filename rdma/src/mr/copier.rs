//! Threads that copy GPU memory for the software device.

use std::fmt;

use rdma_mem::Copier;
use rdma_sys::ibv_mr;

use super::memory::RawMemory;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::{Handle, Raw};
use crate::pd::PdInner;

/// Threads that copy the memory of a GPU for the software device, which cannot access it. Copies of
/// several queue pairs run at the same time.
///
/// The threads end when this value is dropped and its regions have ended.
pub struct CopierThreads {
    #[cfg(feature = "soft")]
    threads: rdma_soft::CopierThreads,
}

impl CopierThreads {
    /// Starts the first thread of a copier.
    ///
    /// # Errors
    ///
    /// `NotSupported` if this build has no software device; errors of the system.
    #[cfg(feature = "soft")]
    pub fn start(copier: impl Copier) -> Result<Self> {
        let started = rdma_soft::CopierThreads::start(copier);
        let error = |error: std::io::Error| match error.raw_os_error() {
            Some(errno) => Error::from_errno(Verb::RegisterMr, errno),
            None => Error::new(Verb::RegisterMr, ErrorKind::Unknown),
        };
        started.map(|threads| Self { threads }).map_err(error)
    }

    /// Starts the first thread of a copier.
    ///
    /// # Errors
    ///
    /// `NotSupported`: this build has no software device.
    #[cfg(not(feature = "soft"))]
    pub fn start(_copier: impl Copier) -> Result<Self> {
        Err(Error::new(Verb::RegisterMr, ErrorKind::NotSupported))
    }
}

impl fmt::Debug for CopierThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopierThreads").finish_non_exhaustive()
    }
}

/// Registers memory of a GPU with the software device.
pub(super) fn register(
    pd: &Handle<PdInner>,
    memory: &RawMemory,
    copier: &CopierThreads,
    flags: u32,
) -> Result<Raw<ibv_mr>> {
    if !pd.context.device.is_software() {
        return Err(Error::new(Verb::RegisterMr, ErrorKind::NotSupported));
    }
    Raw::created(Verb::RegisterMr, || call(pd, memory, copier, flags))
}

#[cfg(feature = "soft")]
fn call(pd: &Handle<PdInner>, memory: &RawMemory, copier: &CopierThreads, flags: u32) -> *mut ibv_mr {
    let address = memory.address().as_ptr().addr() as u64;
    // SAFETY: register_foreign requires a live domain of the software device, which `pd` is: its
    // device was just checked. It requires memory that the copier may access until after
    // deregistration: the contract of `register_copied`, and M1 and M2 for the time.
    unsafe { rdma_soft::register_foreign(pd.raw.as_ptr(), &copier.threads, address, memory.len(), flags) }
}

#[cfg(not(feature = "soft"))]
fn call(_: &Handle<PdInner>, _: &RawMemory, _: &CopierThreads, _: u32) -> *mut ibv_mr {
    std::ptr::null_mut()
}
