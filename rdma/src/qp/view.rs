//! What can be done with a queue pair without posting to it.

use std::fmt;
use std::marker::PhantomData;

use super::QueuePair;
use super::attr::QpAttr;
use super::control::{QpInfo, QpInner};
use super::transport::Transport;
use crate::context::Context;
use crate::error::Result;
use crate::types::QpState;

/// A queue pair without its work queues: looks at it, and moves it to the error state.
///
/// Each half of a split queue pair has one, and so has the queue pair itself. Datagram queue pairs
/// also make address handles and join multicast groups through it.
///
/// # Examples
///
/// ```
/// # use rdma_testkit::{Pair, pair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Pair { a, .. } = pair()?;
/// let (send, recv) = a.into_split();
/// assert_eq!(send.control().qpn(), recv.control().qpn());
/// // All that is in flight comes back, flushed.
/// recv.control().set_error()?;
/// assert_eq!(send.control().state()?, rdma::QpState::ERR);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp")]
pub struct QpControl<'a, T: Transport> {
    pub(crate) inner: &'a QpInner,
    transport: PhantomData<T>,
}

impl<'a, T: Transport> QpControl<'a, T> {
    pub(crate) fn new(inner: &'a QpInner) -> Self {
        Self { inner, transport: PhantomData }
    }

    /// The queue pair number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.inner.qpn
    }

    /// The open device that the queue pair belongs to.
    #[must_use]
    pub fn context(&self) -> Context {
        self.inner.context()
    }

    /// The state that the device reports.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    pub fn state(&self) -> Result<QpState> {
        self.inner.state()
    }

    /// All attributes that the device reports.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.inner.query()
    }

    /// The C object, valid while the handle lives that this value is from.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.inner.raw
    }

    /// Moves the queue pair to the error state: [`QueuePair::set_error`].
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    pub fn set_error(&self) -> Result<()> {
        self.inner.modify(&QpAttr::to(QpState::ERR))
    }
}

impl<'a, T: Transport> From<&'a QueuePair<T>> for QpControl<'a, T> {
    fn from(qp: &'a QueuePair<T>) -> Self {
        qp.control()
    }
}

impl<T: Transport> Clone for QpControl<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Transport> Copy for QpControl<'_, T> {}

impl<T: Transport> fmt::Debug for QpControl<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpControl").field("qpn", &format_args!("{:#08x}", self.qpn())).finish_non_exhaustive()
    }
}
