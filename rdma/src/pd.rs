//! Protection domains: groups of objects that may be used together.

use std::fmt;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use crate::context::{Context, ContextInner};
use crate::error::{Error, Failed, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw, constants, require, require_some};
use crate::types::ForeignObject;

/// A protection domain: memory regions and queue pairs work together only within one domain.
///
/// Clones are handles to the same domain. Regions and queue pairs keep the domain alive.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// use rdma::QueuePair;
///
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(32)?;
/// // Memory and queue pairs of one domain work together.
/// let buffer = pd.allocate(1 << 16)?;
/// let qp = QueuePair::builder(&pd).cq(&cq).build()?;
/// # let _ = (buffer, qp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<Handle<PdInner>>,
}

/// The owner of the C domain.
pub(crate) struct PdInner {
    pub(crate) raw: Raw<ibv_pd>,
    pub(crate) context: Arc<Handle<ContextInner>>,
    ownership: Ownership,
}

impl PdInner {
    /// The domain's identity: a pointer that is only compared, never dereferenced.
    #[inline]
    pub(crate) fn identity(&self) -> *const Self {
        self
    }
}

impl Object for PdInner {
    const DESTROY: Verb = Verb::DeallocPd;
    const NAME: &'static str = "a protection domain";

    fn made_in(&self) -> u32 {
        self.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_dealloc_pd requires a live domain of this table that has no children: this
        // function's contract.
        let call = || unsafe { (self.context.table.ibv_dealloc_pd)(self.raw.as_ptr()) };
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` at the device's limit of domains.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let pd = context.alloc_pd()?;
    /// let buffer = pd.allocate(4096)?;
    /// # let _ = buffer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.inner.check(Verb::AllocPd)?;
        // SAFETY: ibv_alloc_pd requires an open context, which `self` keeps open.
        let call = || unsafe { (self.inner.table.ibv_alloc_pd)(self.as_raw()) };
        Raw::created(Verb::AllocPd, call).map(|raw| ProtectionDomain::new(self, raw, Ownership::Destroy))
    }
}

impl ProtectionDomain {
    /// Makes a handle of a domain that was allocated elsewhere.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the domain is as it was. `Foreign` for NULL and for a domain of
    /// another context; `Forked`.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`].
    pub unsafe fn from_raw(
        context: &Context,
        raw: *mut ibv_pd,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        let check = || {
            context.inner.check(Verb::FromRaw)?;
            require_some(raw)?;
            // `constants` requires a live object: not NULL, so this function's contract says so.
            require(constants!(raw => context) == context.as_raw(), ForeignObject::OtherContext)
        };
        match check() {
            Ok(()) => Ok(Self::new(context, Raw::new(raw), ownership)),
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }

    fn new(context: &Context, raw: Raw<ibv_pd>, ownership: Ownership) -> Self {
        Self { inner: Arc::new(Handle::new(PdInner { raw, context: Arc::clone(&context.inner), ownership })) }
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { inner: Arc::clone(&self.inner.context) }
    }

    /// Frees the domain.
    ///
    /// Dropping the last handle frees the domain too; this reports errors.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone, a region or a queue pair of it lives.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let buffer = pd.allocate(64)?;
    /// let failed = pd.close().unwrap_err();
    /// assert_eq!(failed.error.kind(), rdma::ErrorKind::InUse);
    /// drop(buffer);
    /// failed.object.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object, valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", &self.inner.context.device.name()).finish_non_exhaustive()
    }
}
