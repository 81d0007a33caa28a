//! Address handles: where a datagram goes.
//!
//! # Safety
//!
//! 1. A request in flight keeps an `Arc` of the handle that it names, until it has ended: A1 of
//!    [`posting`](crate::qp::posting). For raw queue pairs that is the caller's duty.

mod grh;
mod source;

use std::fmt;
use std::sync::Arc;

use rdma_sys::ibv_ah;

pub use grh::Grh;
pub use source::Source;

use crate::error::{Error, ErrorKind, Failed, Operation, Result};
use crate::handle::{Handle, Object, Raw};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::Path;

/// Where datagrams go: a port, found by a [`Path`].
///
/// Counted: clones are handles to the same object. It can be dropped at any time: requests under
/// way keep it. A queue pair keeps the handle that its latest datagram went to. Making one may ask
/// the network, so a server keeps those of its clients.
///
/// # Examples
///
/// ```no_run
/// # use rdma::{DatagramEndpoint, Error, ProtectionDomain, QueuePair, Ud};
/// # type Qp = QueuePair<Ud>;
/// # fn f(pd: &ProtectionDomain, qp: &mut Qp, peer: &DatagramEndpoint) -> Result<(), Error> {
/// use rdma::op::Send;
///
/// let address = pd.create_ah(&qp.path_to(peer)?)?;
/// qp.post_send(Send::inline(b"hello").to(&address, peer.qpn, peer.qkey))?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle {
    pub(crate) inner: Arc<Handle<AhInner>>,
}

/// The handle itself (1).
pub(crate) struct AhInner {
    pub(crate) raw: Raw<ibv_ah>,
    path: Path,
    pd: Arc<Handle<PdInner>>,
}

impl Object for AhInner {
    const DESTROY: Operation = Operation::DestroyAh;
    const NAME: &'static str = "an address handle";

    fn made_in(&self) -> u32 {
        self.pd.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_ah wants a live handle of this table (this function's contract) that
        // no request names (1).
        let result = unsafe { (self.pd.context.table.ibv_destroy_ah)(self.raw.as_ptr()) };
        Error::check(Self::DESTROY, result)
    }
}

impl ProtectionDomain {
    /// Creates an address handle for a path.
    ///
    /// On Ethernet this resolves the address, which may ask the network.
    ///
    /// # Errors
    ///
    /// What the provider reports: `InvalidInput` for a port or GID index that does not exist,
    /// `NotSupported` on iWARP; on Ethernet, that the address cannot be resolved.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use rdma::{Path, Route};
    ///
    /// let gid = context.best_gid(1)?.expect("the port has a GID");
    /// let route = Route { gid: gid.gid, source_index: 0, hop_limit: 64, ..Route::default() };
    /// let path = Path { port: 1, route: Some(route), ..Path::default() };
    /// let address = context.alloc_pd()?.create_ah(&path)?;
    /// assert_eq!(address.path().port, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle> {
        let context = &self.inner.context;
        context.check(Operation::CreateAh)?;
        if !context.capabilities().datagrams {
            return Err(Error::new(Operation::CreateAh, ErrorKind::NotSupported));
        }
        if path.port == 0 || path.port > context.device_attr.port_count() {
            // Providers have tables of ports.
            return Err(Error::new(Operation::CreateAh, ErrorKind::InvalidInput));
        }
        let mut attr = path.to_raw();
        // SAFETY: ibv_create_ah wants a domain, which `self` keeps, and attributes that live during
        // the call.
        let raw = unsafe { (context.table.ibv_create_ah)(self.as_raw(), &raw mut attr) };
        let raw = Raw::created(Operation::CreateAh, raw)?;
        let inner = AhInner { raw, path: *path, pd: Arc::clone(&self.inner) };
        Ok(AddressHandle { inner: Arc::new(Handle::new(inner)) })
    }

    /// Creates an address handle for the sender of a datagram, to answer it. `port` is the port
    /// that it arrived on.
    ///
    /// [`QueuePair::answer`](crate::QueuePair::answer) is faster, as it need not look for our GID.
    ///
    /// # Errors
    ///
    /// As for [`create_ah`](Self::create_ah) and [`Source::query_path`]: not for what was sent to a
    /// multicast group.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_for(&self, port: u8, source: &Source) -> Result<AddressHandle> {
        // The same two steps as the library's function; and so the path is known.
        self.create_ah(&source.query_path(&self.context(), port)?)
    }
}

impl AddressHandle {
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
    /// `InUse`, with the handle, while there is a clone, a request to it is under way, or a queue
    /// pair's latest datagram went to it.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object. It is valid while this handle lives.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_ah {
        self.inner.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn domain(&self) -> *const PdInner {
        self.inner.pd.identity()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
