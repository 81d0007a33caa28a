//! The active side: resolve an address, then connect.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{ConnectError, Connection};
use super::{apply_ece, deadline, ece, wait_for};
use crate::cm::event::EventKind;
use crate::cm::id::Id;
use crate::cm::message::Accepted;
use crate::cm::{ConnOptions, EventChannel, PortSpace};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QueuePair};
use crate::transport::Rc;
use crate::types::{PathOptions, RemoteAccess};
use crate::wait::Deadline;

/// Options that take effect before an address is resolved.
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct ResolveOptions {
    path: PathOptions,
}

impl ResolveOptions {
    /// Default options: nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The options of the path: [`Id::set_path`].
        path(path: PathOptions) = path;
    }
}

/// A resolved address and route, ready to connect.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// use std::time::Duration;
/// use rdma::cm::blocking;
/// use rdma::transport::Rc;
///
/// let server = "127.0.0.1:7174".parse()?;
/// let route = blocking::resolve::<Rc>(&context, None, server, Duration::from_secs(2))?;
/// assert_eq!(route.peer_addr(), Some(server));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Resolved<T: PortSpace = Rc> {
    pub(super) id: Id<T>,
    pub(super) channel: EventChannel,
}

/// Resolves an address and the route to it, each within the timeout.
///
/// `source` is the local address: it chooses the device if several lead to the destination.
///
/// # Errors
///
/// `NoRoute` if no device leads to the destination; `Timeout` if the address does not answer;
/// `WrongDevice` if another device than the context's leads there; the errors of
/// [`EventChannel::of`].
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "rdma_resolve_route")]
pub fn resolve<T: PortSpace>(
    context: &Context,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
) -> Result<Resolved<T>> {
    resolve_with(context, source, destination, timeout, &ResolveOptions::new())
}

/// Resolves an address and the route to it, with options.
///
/// # Errors
///
/// As for [`resolve`], and those of [`Id::set_path`].
pub fn resolve_with<T: PortSpace>(
    context: &Context,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
    options: &ResolveOptions,
) -> Result<Resolved<T>> {
    resolve_id(EventChannel::of(context)?, Some(context), source, destination, timeout, options)
}

/// Resolves an address and the route to it, through whichever device leads there:
/// [`Resolved::context`] tells its context.
///
/// The channel becomes the id's own.
///
/// # Errors
///
/// `NoRoute` if no device leads to the destination; `Timeout` if the address does not answer;
/// errors of librdmacm.
///
/// # Examples
///
/// ```
/// # let soft0 = rdma::open(&"soft0".parse()?)?.context;
/// use std::time::Duration;
/// use rdma::cm::blocking::{self, ResolveOptions};
/// use rdma::{QueuePair, cm::EventChannel};
/// use rdma::transport::Rc;
///
/// let (server, timeout) = ("127.0.0.1:7174".parse()?, Duration::from_secs(2));
/// # let channel = EventChannel::of(&soft0)?;
/// # if false {
/// let channel = EventChannel::new()?;
/// # }
/// let route = blocking::resolve_on::<Rc>(channel, None, server, timeout, &ResolveOptions::new())?;
/// let context = route.context()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
/// let qp = route.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
/// # drop(qp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "rdma_resolve_route")]
pub fn resolve_on<T: PortSpace>(
    channel: EventChannel,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
    options: &ResolveOptions,
) -> Result<Resolved<T>> {
    resolve_id(channel, None, source, destination, timeout, options)
}

fn resolve_id<T: PortSpace>(
    channel: EventChannel,
    only: Option<&Context>,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
    options: &ResolveOptions,
) -> Result<Resolved<T>> {
    let id = channel.create_id::<T>()?;
    id.set_path(&options.path)?;
    id.resolve_addr(source, destination, timeout)?;
    let resolved = |kind| matches!(kind, EventKind::AddrResolved).then_some(());
    wait_for((&channel, id.key()), Verb::ResolveAddr, within(timeout), resolved).map_err(|(error, _)| error)?;
    only.map_or(Ok(()), |context| id.raw.check_device(Verb::ResolveAddr, context))?;
    id.resolve_route(timeout)?;
    let resolved = |kind| matches!(kind, EventKind::RouteResolved).then_some(());
    wait_for((&channel, id.key()), Verb::ResolveRoute, within(timeout), resolved).map_err(|(error, _)| error)?;
    Ok(Resolved { id, channel })
}

/// A deadline past the kernel's own timeout, for a kernel that never reports the timeout.
fn within(timeout: Duration) -> Deadline {
    deadline(timeout.saturating_mul(2).saturating_add(Duration::from_secs(1)))
}

impl<T: PortSpace> Resolved<T> {
    getters! { |this|
        /// The local address.
        local_addr: Option<SocketAddr> = this.id.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.id.peer_addr();
        /// The id.
        id: &Id<T> = &this.id;
    }

    /// The context of the device that leads to the peer, for the queue pair: [`Id::context`].
    ///
    /// # Errors
    ///
    /// As for [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Continues in the form for event loops: returns the id and its channel.
    #[must_use]
    pub fn into_id(self) -> (Id<T>, EventChannel) {
        (self.id, self.channel)
    }
}

impl<T: PortSpace> Resolved<T> {
    /// The id, whose route is resolved, on a channel of its own.
    #[cfg(feature = "aio")]
    pub(crate) fn from_parts(id: Id<T>, channel: EventChannel) -> Self {
        Self { id, channel }
    }
}

impl Resolved<Rc> {
    /// Binds a queue pair to the port that leads to the peer, and allows all remote operations that
    /// the device supports.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Rc>) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        let access = qp.all_access();
        self.id.init(qp, access)
    }

    /// Binds like `init`, but allows the peer only `access`; a region must allow an
    /// operation too.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init_with(
        &self,
        qp: PreparedQueuePair<Rc>,
        access: RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        self.id.init(qp, access)
    }

    /// Connects, and waits until the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the queue pair. [Reset](InitializedQueuePair::reset) it before using it again (on
    /// iWARP, make a new one if anything is posted to it). `NotListening`; `Rejected` with the
    /// peer's private data; `Timeout`; `TooLong` for the private data; `WrongDevice` for a queue
    /// pair of another device; errors of librdmacm or the provider. To try again, resolve again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma::cm::{ConnOptions, blocking::Resolved};
    /// # use rdma::{CompletionQueue, ProtectionDomain, QueuePair};
    ///
    /// # type Parts<'a> = (&'a ProtectionDomain, &'a CompletionQueue);
    /// # fn f(route: Resolved, (pd, cq): Parts<'_>) -> Result<(), rdma::Error> {
    /// let qp = route.init(QueuePair::builder(pd).cq(cq).build()?)?;
    /// let options = ConnOptions::new().private_data(b"version 1");
    /// let (connection, qp) = route.connect(qp, &options, Duration::from_secs(5))?;
    /// # let _ = (connection, qp);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
        timeout: Duration,
    ) -> Result<(Connection, QueuePair<Rc>), ConnectError> {
        let deadline = deadline(timeout);
        let ours = match self.request(&qp, options) {
            Ok(ours) => ours,
            Err(error) => return Err(ConnectError::new(error, qp)),
        };
        let answer = wait_for((&self.channel, self.id.key()), Verb::Connect, deadline, |kind| match kind {
            EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) => Some(accepted),
            _ => None,
        });
        match answer {
            Ok(accepted) => self.establish(qp, options, ours, accepted),
            Err((error, private_data)) => Err(ConnectError { private_data, ..ConnectError::new(error, qp) }),
        }
    }

    /// Asks the peer for the connection. Returns the ECE options that were offered.
    pub(crate) fn request(&self, qp: &InitializedQueuePair<Rc>, options: &ConnOptions) -> Result<crate::cm::Ece> {
        let ours = self.offer_ece(qp)?;
        self.id.connect(qp, options).map(|()| ours)
    }

    /// Completes the connection that the peer has accepted.
    pub(crate) fn establish(
        self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
        ours: crate::cm::Ece,
        Accepted { private_data, parameters }: Accepted,
    ) -> Result<(Connection, QueuePair<Rc>), ConnectError> {
        if let Err(error) = self.take_ece(&qp, ours) {
            return Err(ConnectError::new(error, qp));
        }
        match self.id.establish(qp, options) {
            Ok(qp) => Ok((Connection::new(self.id, self.channel, private_data, parameters), qp)),
            Err(failed) => Err(ConnectError::new(failed.error, failed.object)),
        }
    }

    /// Offers the provider's ECE options to the peer, as librdmacm does for its own queue pairs.
    fn offer_ece(&self, qp: &InitializedQueuePair<Rc>) -> Result<crate::cm::Ece> {
        let Some(ours) = ece(qp)? else { return Ok(crate::cm::Ece::default()) };
        match self.id.set_local_ece(ours) {
            Ok(()) => Ok(ours),
            Err(error) if error.kind() == ErrorKind::NotSupported => Ok(crate::cm::Ece::default()),
            Err(error) => Err(error),
        }
    }

    /// Gives the peer's ECE answer to the provider.
    fn take_ece(&self, qp: &InitializedQueuePair<Rc>, ours: crate::cm::Ece) -> Result<()> {
        if ours.vendor_id == 0 {
            return Ok(());
        }
        let theirs = self.id.remote_ece()?;
        if theirs.vendor_id != 0 && theirs.vendor_id != ours.vendor_id {
            // An ECE answer repeats the vendor id of the offer.
            return Err(Error::new(Verb::GetRemoteEce, ErrorKind::Incompatible));
        }
        apply_ece(qp, ours, theirs)
    }
}

debug_by_methods!(Resolved<T: PortSpace>: id);
