//! Address handles: the destinations of datagrams.
//!
//! # Safety
//!
//! 1. A request in flight keeps an `Arc` of the handle that it names until the request has ended:
//!    A1 of [`posting`](crate::qp::posting). For raw queue pairs this is the caller's duty.

mod foreign;
mod grh;
mod source;

use std::sync::Arc;

use rdma_sys::ibv_ah;

pub use grh::Grh;
pub use source::Source;

use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::{Path, PathOptions};

/// The destination of datagrams: a port, described by a [`Path`].
///
/// Clones are handles to the same object. A handle can be dropped at any time: requests in flight
/// keep the object alive, and a queue pair keeps the handle of its latest datagram. Creating a
/// handle may query the network, so a server should keep its clients' handles, for example in an
/// [`AddressCache`](crate::AddressCache).
///
/// # Examples
///
/// ```no_run
/// # use rdma::{DatagramEndpoint, Error, ProtectionDomain, QueuePair};
/// # use rdma::transport::Ud;
/// # type Qp = QueuePair<Ud>;
/// # fn f(pd: &ProtectionDomain, qp: &mut Qp, peer: &DatagramEndpoint) -> Result<(), Error> {
/// use rdma::op;
///
/// let address = pd.create_ah(&qp.path_to(peer)?)?;
/// qp.post_send(op::send_inline(b"hello").to(&address, peer.qpn, peer.qkey))?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle {
    pub(crate) inner: Arc<Handle<AhInner>>,
}

/// The owner of the C handle (1).
pub(crate) struct AhInner {
    pub(crate) raw: Raw<ibv_ah>,
    path: Path,
    pd: Arc<Handle<PdInner>>,
    ownership: Ownership,
}

impl Object for AhInner {
    const DESTROY: Verb = Verb::DestroyAh;
    const NAME: &'static str = "an address handle";

    fn made_in(&self) -> u32 {
        self.pd.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_ah requires a live handle of this table (this function's contract)
        // that no request in flight names (1).
        let call = || unsafe { (self.pd.context.table.ibv_destroy_ah)(self.raw.as_ptr()) };
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

impl ProtectionDomain {
    /// Creates an address handle for a path.
    ///
    /// On Ethernet this resolves the address, which may query the network.
    ///
    /// # Errors
    ///
    /// `InvalidOption` for a service level or a flow label out of its range; errors of the
    /// provider: `InvalidInput` for a port or GID index that does not exist; `NotSupported` on
    /// iWARP; on Ethernet, an address that cannot be resolved.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use rdma::{Path, Route};
    ///
    /// let gid = context.best_gid(1)?.expect("the port has a GID");
    /// let path = Path::new(1).route(Route::new(gid.gid).hop_limit(64));
    /// let address = context.alloc_pd()?.create_ah(&path)?;
    /// assert_eq!(address.path().port, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle> {
        let context = &self.inner.context;
        context.check(Verb::CreateAh)?;
        if !context.capabilities().datagrams {
            return Err(Error::new(Verb::CreateAh, ErrorKind::NotSupported));
        }
        if path.port == 0 || path.port > context.device_attr.port_count() {
            // Providers index tables of ports, possibly without a check.
            return Err(Error::new(Verb::CreateAh, ErrorKind::InvalidInput));
        }
        let mut given = PathOptions::new().service_level(path.service_level);
        given.flow_label = path.route.map(|route| route.flow_label);
        Error::check_option(Verb::CreateAh, given.check())?;
        let mut attr = path.to_raw();
        // SAFETY: ibv_create_ah requires a live domain, which `self` keeps, and attributes that
        // live during the call.
        let call = || unsafe { (context.table.ibv_create_ah)(self.as_raw(), &raw mut attr) };
        let raw = Raw::created(Verb::CreateAh, call)?;
        Ok(AddressHandle::new(raw, *path, &self.inner, Ownership::Destroy))
    }

    /// Creates an address handle for the sender of a datagram, to answer it. `port` is the port
    /// that the datagram arrived on.
    ///
    /// [`QueuePair::answer`](crate::QueuePair::answer) is faster, because it need not search for
    /// our GID.
    ///
    /// # Errors
    ///
    /// As for [`create_ah`](Self::create_ah) and [`Source::query_path`]: datagrams to a multicast
    /// group are refused.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_for(&self, port: u8, source: &Source) -> Result<AddressHandle> {
        // The same two steps as the library's function; done here because the path must be kept.
        self.create_ah(&source.query_path(&self.context(), port)?)
    }
}

impl AddressHandle {
    fn new(raw: Raw<ibv_ah>, path: Path, pd: &Arc<Handle<PdInner>>, ownership: Ownership) -> Self {
        Self { inner: Arc::new(Handle::new(AhInner { raw, path, pd: Arc::clone(pd), ownership })) }
    }

    /// The path that the handle was made for.
    #[must_use]
    pub fn path(&self) -> Path {
        self.inner.path
    }

    /// Destroys the handle.
    ///
    /// Dropping the last handle destroys it too; this reports errors.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone exists, a request to it is in flight, or a queue
    /// pair's latest datagram went to it.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object, valid while this handle lives.
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

debug_by_methods!(AddressHandle: path);

#[cfg(test)]
mod tests;
