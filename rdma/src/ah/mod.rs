//! Address handles: where a datagram goes.
//!
//! # Safety
//!
//! 1. An [`AhInner`] owns an address handle that its context's table created; it is destroyed once. It keeps its domain (or has
//!    leaked it, if it could not be destroyed).
//! 2. Who posts a request that names a handle keeps an `Arc` of it until the request has ended: A1 of
//!    [`to`](crate::qp::to). For raw queue pairs that is the caller's duty.
//! 3. Nothing is called in a forked child.

mod grh;
mod source;

use std::fmt;
use std::sync::Arc;

use rdma_sys::ibv_ah;

pub use grh::Grh;
pub use source::Source;

use crate::error::{Error, ErrorKind, Failed, Operation, Result};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::Path;

/// Where datagrams go: a port, found by a [`Path`].
///
/// Counted: clones are handles to the same object. It can be dropped at any time: requests under way keep it. A queue pair keeps
/// the handle that its latest datagram went to. Making one may ask the network, so a server keeps those of its clients.
///
/// # Examples
///
/// ```no_run
/// # fn f(pd: &rdma::ProtectionDomain, qp: &mut rdma::QueuePair<rdma::Ud>, peer: &rdma::DatagramEndpoint)
/// #     -> Result<(), rdma::Error> {
/// use rdma::{AddressHandle, op::Send};
///
/// let address = AddressHandle::new(pd, &qp.path_to(peer)?)?;
/// qp.post_send(Send::inline(b"hello").to(&address, peer.qpn, peer.qkey))?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle {
    pub(crate) inner: Arc<AhInner>,
}

/// The handle itself (1).
pub(crate) struct AhInner {
    pub(crate) raw: *mut ibv_ah,
    path: Path,
    pd: Arc<PdInner>,
    destroyed: bool,
}

// SAFETY: libibverbs' functions may be called on one handle from any thread; posting only reads it.
unsafe impl Send for AhInner {}
// SAFETY: as above.
unsafe impl Sync for AhInner {}

impl AhInner {
    fn destroy(&mut self) -> Result<()> {
        self.pd.context.check(Operation::DestroyAh)?;
        // SAFETY: created by this table, not destroyed before (`destroyed`), no request names it (2), no forked child (3).
        let result = unsafe { (self.pd.context.table.ibv_destroy_ah)(self.raw) };
        Error::check(Operation::DestroyAh, result)?;
        self.destroyed = true;
        Ok(())
    }
}

impl Drop for AhInner {
    #[allow(clippy::mem_forget, reason = "a handle that the device still has needs its domain")]
    fn drop(&mut self) {
        if self.destroyed {
            return;
        }
        let Err(error) = self.destroy() else { return };
        std::mem::forget(Arc::clone(&self.pd));
        if error.kind() != ErrorKind::Forked {
            tracing::warn!(%error, "an address handle could not be destroyed; it and its domain are leaked");
        }
    }
}

impl AddressHandle {
    /// Makes a handle for a path.
    ///
    /// # Errors
    ///
    /// What the provider reports: `InvalidInput` for a port or GID index that does not exist, `NotSupported` on iWARP; on
    /// Ethernet, that the address cannot be resolved.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(pd: &ProtectionDomain, path: &Path) -> Result<Self> {
        let context = &pd.inner.context;
        context.check(Operation::CreateAh)?;
        if context.is_iwarp() {
            return Err(Error::new(Operation::CreateAh, ErrorKind::NotSupported));
        }
        if path.port == 0 || path.port > context.device_attr.port_count() {
            // Providers have tables of ports.
            return Err(Error::new(Operation::CreateAh, ErrorKind::InvalidInput));
        }
        let mut attr = path.to_raw();
        // SAFETY: ibv_create_ah wants a domain, which the new value keeps (1), and attributes that live during the call; no
        // forked child (3).
        let raw = unsafe { (context.table.ibv_create_ah)(pd.inner.raw, &raw mut attr) };
        if raw.is_null() {
            return Err(Error::last(Operation::CreateAh));
        }
        let inner = AhInner { raw, path: *path, pd: Arc::clone(&pd.inner), destroyed: false };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes a handle for where a datagram came from, to answer it. `port` is the port that it arrived on.
    ///
    /// [`QueuePair::answer`](crate::QueuePair::answer) is faster, as it need not look for our GID.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new) and [`Source::query_path`]: not for what was sent to a multicast group.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn for_source(pd: &ProtectionDomain, port: u8, source: &Source) -> Result<Self> {
        // The same two steps as the library's function of that name; and so the path is known.
        Self::new(pd, &source.query_path(&pd.context(), port)?)
    }

    /// The path that it was made for.
    #[must_use]
    pub fn path(&self) -> Path {
        self.inner.path
    }

    /// Destroys the handle.
    ///
    /// Dropping the last one does the same; this says whether it worked.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while there is a clone, a request to it is under way, or a queue pair's latest datagram went
    /// to it.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => inner.destroy().map_err(|error| Failed::new(error, Self { inner: Arc::new(inner) })),
            Err(inner) => Err(Failed::new(Error::new(Operation::DestroyAh, ErrorKind::InUse), Self { inner })),
        }
    }

    /// The C object. It is valid while this handle lives.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_ah {
        self.inner.raw
    }

    #[inline]
    pub(crate) fn domain(&self) -> *const PdInner {
        Arc::as_ptr(&self.inner.pd)
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
