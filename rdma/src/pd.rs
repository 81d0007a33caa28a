//! Protection domains: what may be used together.
//!
//! # Safety
//!
//! 1. A [`PdInner`] owns a domain that its context's table allocated; it is freed once, after everything made in it, which
//!    holds an `Arc` of it (or leaked one, if it could not be destroyed).
//! 2. Nothing is called in a forked child.

use std::fmt;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use crate::context::{Context, ContextInner};
use crate::error::{Error, ErrorKind, Failed, Operation, Result};

/// A protection domain: memory regions and queue pairs of one domain work together, those of different ones do not.
///
/// Counted: clones are handles to the same domain, and regions and queue pairs keep it.
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

/// The domain itself (1).
pub(crate) struct PdInner {
    pub(crate) raw: *mut ibv_pd,
    pub(crate) context: Arc<ContextInner>,
    freed: bool,
}

// SAFETY: libibverbs' functions may be called on one domain from any thread.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl PdInner {
    fn free(&mut self) -> Result<()> {
        self.context.check(Operation::DeallocPd)?;
        // SAFETY: allocated by this table, not freed before (`freed`), and nothing made in it is left (1); not in a forked
        // child (2).
        let result = unsafe { (self.context.table.ibv_dealloc_pd)(self.raw) };
        Error::check(Operation::DeallocPd, result)?;
        self.freed = true;
        Ok(())
    }
}

impl Drop for PdInner {
    #[allow(clippy::mem_forget, reason = "the device must stay open for a domain that it still has")]
    fn drop(&mut self) {
        if self.freed || self.context.is_forked() {
            return;
        }
        if let Err(error) = self.free() {
            std::mem::forget(Arc::clone(&self.context));
            tracing::warn!(%error, "a protection domain could not be freed; it and its device are leaked");
        }
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` at the device's limit.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.inner.check(Operation::AllocPd)?;
        // SAFETY: ibv_alloc_pd wants an open context, which `self` keeps open.
        let raw = unsafe { (self.inner.table.ibv_alloc_pd)(self.inner.raw) };
        if raw.is_null() {
            return Err(Error::last(Operation::AllocPd));
        }
        Ok(ProtectionDomain { inner: Arc::new(PdInner { raw, context: Arc::clone(&self.inner), freed: false }) })
    }
}

impl ProtectionDomain {
    /// Takes over a domain that was allocated elsewhere.
    ///
    /// # Safety
    ///
    /// `raw` was allocated in this context, and is not freed by anybody else.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: *mut ibv_pd) -> Self {
        Self { inner: Arc::new(PdInner { raw, context: Arc::clone(&context.inner), freed: false }) }
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { inner: Arc::clone(&self.inner.context) }
    }

    /// Frees the domain.
    ///
    /// Dropping the last handle does the same; this says whether it worked.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone, a region or a queue pair of it lives.
    pub fn close(self) -> Result<(), Failed<Self>> {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => inner.free().map_err(|error| Failed::new(error, Self { inner: Arc::new(inner) })),
            Err(inner) => Err(Failed::new(Error::new(Operation::DeallocPd, ErrorKind::InUse), Self { inner })),
        }
    }

    /// The C object. It is valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.inner.raw
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", &self.inner.context.device.name()).finish_non_exhaustive()
    }
}
