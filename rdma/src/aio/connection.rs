//! Connections of the connection manager, each connected or accepted in one await.
//!
//! Each attempt has an event channel of its own, as in [`blocking`]: it disturbs no other, and its
//! drop destroys its id and its queue pair. A timer that the channel's descriptor watches ends it
//! at its deadline, so the executor needs no timer. Nothing relies on the drop of a future: one
//! that is leaked keeps its objects, and no more.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use super::Readiness;
use crate::cm::blocking::{self, Failure, ListenOptions, failure, is_established, outcome};
use crate::cm::{ConnOptions, EventChannel, EventKind, Id, IdKey, PrivateData};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::os::TimerFd;
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QpBuilder, QpControl, QueuePair};
use crate::transport::Rc;
use crate::types::RemoteAccess;
use crate::wait;

/// Options of [`connect`] and of [`Incoming::accept`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use rdma::aio::ConnectionOptions;
/// use rdma::cm::ConnOptions;
///
/// let options = ConnectionOptions::new().timeout(Duration::from_secs(2)).parameters(ConnOptions::new().private_data(b"v1"));
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ConnectionOptions {
    context: Option<Context>,
    source: Option<SocketAddr>,
    parameters: ConnOptions,
    timeout: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self { context: None, source: None, parameters: ConnOptions::new(), timeout: Duration::from_secs(10) }
    }
}

impl ConnectionOptions {
    /// Default options: any device of the host, 10 seconds, no private data.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Connects by the connection manager of this context's device: [`EventChannel::of`]. By
        /// default it is that of the host's hardware: [`EventChannel::new`].
        context(context: &Context) = Some(context.clone());
        /// The local address, which chooses the device if several lead to the peer.
        source(source: SocketAddr) = Some(source);
        /// The parameters of the connection: private data, depths, the path.
        parameters(parameters: ConnOptions) = parameters;
        /// The time until the attempt fails with `Timeout`: 10 seconds by default.
        timeout(timeout: Duration) = timeout;
    }
}

/// The device that leads to a peer, for the queue pair of a connection.
#[derive(Debug)]
pub struct Setup<'a> {
    id: &'a Id<Rc>,
}

impl Setup<'_> {
    /// The context of the device: [`Id::context`].
    ///
    /// # Errors
    ///
    /// As for [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    getters! { |this|
        /// The local address.
        local_addr: Option<SocketAddr> = this.id.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.id.peer_addr();
    }

    /// Builds the queue pair and binds it to the device's port, with all remote operations that the
    /// device supports.
    ///
    /// # Errors
    ///
    /// As for [`QpBuilder::build`] and [`Id::init`].
    pub fn init(&self, builder: QpBuilder<Rc>) -> Result<InitializedQueuePair<Rc>> {
        let qp = builder.build()?;
        let access = qp.all_access();
        self.init_with(qp, access)
    }

    /// Binds a queue pair to the device's port, and allows the peer only `access`.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init_with(&self, qp: PreparedQueuePair<Rc>, access: RemoteAccess) -> Result<InitializedQueuePair<Rc>> {
        Ok(self.id.init(qp, access)?)
    }
}

/// Connects to a peer, through whichever device leads there.
///
/// `wait` registers a descriptor with the executor, for example by `tokio::Readable::new`. `setup`
/// makes the queue pair on the device of the [`Setup`], and posts its first receives.
///
/// Dropping the future gives up: the queue pair and the id are destroyed, and the peer learns of
/// it.
///
/// On iWARP the system call that connects ends when TCP has reached the peer, or not: it holds the
/// executor's thread, and the timeout does not end it.
///
/// # Errors
///
/// A [`ConnectionError`] that names the peer: `NoRoute`; `NotListening`; `Rejected`, with the
/// peer's private data; `Timeout`; errors of `setup`, of the connection manager and of the
/// executor.
///
/// # Examples
///
/// A client and a server in one program, on tokio:
///
#[cfg_attr(feature = "tokio", doc = "```")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// use std::os::fd::BorrowedFd;
///
/// use rdma::aio::{self, ConnectionOptions, Driver, DriverOptions, Listener};
/// use rdma::cm::blocking::ListenOptions;
/// use rdma::cm::{ConnOptions, EventChannel};
/// use rdma::{Context, QueuePair, op};
///
/// type Listening = Listener<aio::tokio::Readable>;
///
/// async fn serve(context: &Context, mut listener: Listening) -> Result<(), rdma::Error> {
///     let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
///     let incoming = listener.next().await?;
///     if !incoming.private_data().starts_with(b"version 1") {
///         return incoming.reject(b"version 1 only");
///     }
///     let options = ConnectionOptions::new();
///     let wait = |fd: BorrowedFd<'_>| aio::tokio::Readable::new(fd);
///     let accepted = incoming.accept(&options, wait, |setup| {
///         let mut qp = setup.init(QueuePair::builder(&pd).cq(&cq))?;
///         qp.post_recv(pd.allocate(64)?, 1)?;
///         Ok(qp)
///     });
///     let (mut connection, _qp) = accepted.await?;
///     // The drop of the connection answers the peer that has ended it.
///     connection.disconnected().await
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let wait = |fd: BorrowedFd<'_>| aio::tokio::Readable::new(fd);
/// let channel = EventChannel::of(&context)?;
/// let listener = Listener::bind(channel, "127.0.0.1:0".parse()?, &ListenOptions::new(), wait)?;
/// let address = listener.local_addr();
/// # let of_server = context.clone();
/// let server = tokio::spawn(async move { serve(&of_server, listener).await });
///
/// let (driver, handle) = Driver::new(&context, &DriverOptions::new())?;
/// let readable = aio::tokio::Readable::new(&driver)?;
/// tokio::spawn(driver.run(readable));
/// let pd = context.alloc_pd()?;
/// let version = ConnOptions::new().private_data(b"version 1");
/// let options = ConnectionOptions::new().context(&context).parameters(version);
/// let connecting = aio::connect(address, &options, wait, |setup| {
///     let builder = QueuePair::builder(&pd).cq(handle.completion_queue()).max_inline_data(16);
///     let mut qp = setup.init(builder)?;
///     handle.post_recv(&mut qp, pd.allocate(64)?)?;
///     Ok(qp)
/// });
/// let (mut connection, qp) = connecting.await?;
/// let mut qp = handle.queue_pair(qp)?;
/// qp.start(op::send_inline(b"hello"))?.await.into_memory()?;
/// connection.disconnect(qp.queue_pair())?;
/// connection.disconnected().await?;
/// server.await??;
/// # Ok(()) })}
/// ```
#[doc(alias = "rdma_connect")]
pub async fn connect<R: Readiness>(
    to: SocketAddr,
    options: &ConnectionOptions,
    wait: impl Fn(BorrowedFd<'_>) -> io::Result<R>,
    setup: impl FnOnce(&Setup<'_>) -> Result<InitializedQueuePair<Rc>>,
) -> Result<(Connection<R>, QueuePair<Rc>), ConnectionError> {
    let connected = connect_to(to, options, wait, setup).await;
    connected.map_err(|failure| ConnectionError::new(Some(to), failure))
}

async fn connect_to<R: Readiness>(
    to: SocketAddr,
    options: &ConnectionOptions,
    wait: impl Fn(BorrowedFd<'_>) -> io::Result<R>,
    setup: impl FnOnce(&Setup<'_>) -> Result<InitializedQueuePair<Rc>>,
) -> Result<(Connection<R>, QueuePair<Rc>), Failure> {
    let channel = options.context.as_ref().map_or_else(EventChannel::new, EventChannel::of).map_err(failure)?;
    let mut attempt = Attempt::new(&channel, &wait, options.timeout).map_err(failure)?;
    let id = channel.create_id::<Rc>().map_err(failure)?;
    id.resolve_addr(options.source, to, options.timeout).map_err(failure)?;
    let resolved = |kind| matches!(kind, EventKind::AddrResolved).then_some(());
    attempt.wait(id.key(), Verb::ResolveAddr, resolved).await?;
    id.resolve_route(options.timeout).map_err(failure)?;
    let resolved = |kind| matches!(kind, EventKind::RouteResolved).then_some(());
    attempt.wait(id.key(), Verb::ResolveRoute, resolved).await?;
    let qp = setup(&Setup { id: &id }).map_err(failure)?;
    let route = blocking::Resolved::from_parts(id, channel);
    let ours = route.request(&qp, &options.parameters).map_err(failure)?;
    let answer = |kind| match kind {
        EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) => Some(accepted),
        _ => None,
    };
    let accepted = attempt.wait(route.id().key(), Verb::Connect, answer).await?;
    let established = route.establish(qp, &options.parameters, ours, accepted);
    let (inner, qp) = established.map_err(|failed| (failed.error, failed.private_data))?;
    Ok((Connection { inner, readiness: attempt.end() }, qp))
}

/// Waits for the events of one id, with a deadline.
struct Attempt<R> {
    channel: EventChannel,
    deadline: Option<Instant>,
    readiness: R,
    /// Makes the channel's descriptor readable at the deadline.
    timer: TimerFd,
}

impl<R: Readiness> Attempt<R> {
    fn new(channel: &EventChannel, wait: &impl Fn(BorrowedFd<'_>) -> io::Result<R>, timeout: Duration) -> Result<Self> {
        let timer = TimerFd::new().map_err(wait::failed("timerfd_create"))?;
        channel.watch_too(timer.as_fd())?;
        // Read before the timer is set: the deadline is over when the timer fires.
        let deadline = Instant::now().checked_add(timeout);
        timer.set(deadline.map(|_| timeout)).map_err(wait::failed("timerfd_settime"))?;
        let readiness = wait(channel.as_fd()).map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
        Ok(Self { channel: channel.clone(), deadline, readiness, timer })
    }

    /// Waits for the event of the id that `wanted` accepts.
    async fn wait<T>(
        &mut self,
        id: IdKey,
        operation: Verb,
        mut wanted: impl FnMut(EventKind) -> Option<T>,
    ) -> Result<T, Failure> {
        poll_fn(|cx| self.poll_wait(cx, id, operation, &mut wanted)).await
    }

    fn poll_wait<T>(
        &mut self,
        cx: &mut TaskContext<'_>,
        id: IdKey,
        operation: Verb,
        wanted: &mut impl FnMut(EventKind) -> Option<T>,
    ) -> Poll<Result<T, Failure>> {
        loop {
            let event = self.channel.try_next_event().map_err(failure)?;
            let pending = event.is_some();
            if let Some(event) = event.filter(|event| event.id == id) {
                if let Some(found) = wanted(outcome(event.kind, operation)?) {
                    return Poll::Ready(Ok(found));
                }
            }
            // A stream of events must not extend the deadline.
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Poll::Ready(Err(failure(Error::new(operation, ErrorKind::Timeout))));
            }
            if !pending {
                let readable = ready!(self.readiness.poll_readable(cx));
                readable.map_err(|error| failure(Error::from_io(Verb::WatchDescriptor, &error)))?;
            }
        }
    }

    /// Ends the deadline; the channel's descriptor goes on.
    fn end(self) -> R {
        // The drop takes the timer from the channel's epoll, except in a process that has forked
        // meanwhile: the child keeps it.
        let _stopped = self.timer.set(None);
        self.readiness
    }
}

/// Waits for peers that connect, on one device or on all devices of the host.
///
/// # Examples
///
/// A server on all NICs of a host, with a domain and a completion queue on each:
///
#[cfg_attr(feature = "tokio", doc = "```no_run")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use std::collections::HashMap;
///
/// use rdma::QueuePair;
/// use rdma::aio::{self, ConnectionOptions};
/// use rdma::cm::EventChannel;
/// use rdma::cm::blocking::ListenOptions;
///
/// let wait = |fd: std::os::fd::BorrowedFd<'_>| aio::tokio::Readable::new(fd);
/// let address = "0.0.0.0:7174".parse()?;
/// let (channel, options) = (EventChannel::new()?, ListenOptions::new());
/// let connection = ConnectionOptions::new();
/// let mut listener = aio::Listener::bind(channel, address, &options, wait)?;
/// let mut devices = HashMap::new();
/// loop {
///     let incoming = listener.next().await?;
///     let context = incoming.context()?;
///     if !devices.contains_key(&context.name()) {
///         devices.insert(context.name(), (context.alloc_pd()?, context.create_cq(1024)?));
///     }
///     let (pd, cq) = &devices[&context.name()];
///     let accepted = incoming.accept(&connection, wait, |setup| {
///         let mut qp = setup.init(QueuePair::builder(pd).cq(cq))?;
///         qp.post_recv(pd.allocate(64)?, 1)?;
///         Ok(qp)
///     });
///     # let _both =
///     accepted.await?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Listener<R> {
    inner: blocking::Listener<Rc>,
    readiness: R,
}

impl<R: Readiness> Listener<R> {
    /// Listens at an address of any device of the channel's connection manager, or, with the
    /// unspecified address, at all addresses of all devices: [`blocking::Listener::on`]. The
    /// channel becomes the listener's own.
    ///
    /// # Errors
    ///
    /// As for [`blocking::Listener::on`]; errors of the executor.
    pub fn bind(
        channel: EventChannel,
        address: SocketAddr,
        options: &ListenOptions,
        wait: impl Fn(BorrowedFd<'_>) -> io::Result<R>,
    ) -> Result<Self> {
        let inner = blocking::Listener::on(channel, address, options)?;
        let readiness = wait(inner.as_fd()).map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
        Ok(Self { inner, readiness })
    }

    /// The local address, with the chosen port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Waits for the next request. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// As for [`blocking::Listener::next_request`]; errors of the executor.
    pub async fn next(&mut self) -> Result<Incoming> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next request: [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Incoming>> {
        loop {
            if let Some(request) = self.inner.next_request(Some(Duration::ZERO))? {
                return Poll::Ready(Ok(Incoming { request }));
            }
            let readable = ready!(self.readiness.poll_readable(cx));
            readable.map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
        }
    }
}

/// A peer's request for a connection. Accept or reject it; dropping rejects.
#[derive(Debug)]
pub struct Incoming {
    request: blocking::IncomingConnection<Rc>,
}

impl Incoming {
    getters! { |this|
        /// The peer's private data, padded with zeros on InfiniBand and RoCE.
        private_data: &[u8] = this.request.private_data();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.request.peer_addr();
        /// The request in the form for threads that block.
        request: &blocking::IncomingConnection<Rc> = &this.request;
    }

    /// The context of the device that the request arrived on: [`Id::context`].
    ///
    /// # Errors
    ///
    /// As for [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.request.context()
    }

    /// Rejects the request, with private data that says why.
    ///
    /// # Errors
    ///
    /// As for [`blocking::IncomingConnection::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }

    /// Accepts the request, and waits until the connection is established. `setup` makes the queue
    /// pair on the device that the request arrived on, and posts its first receives. Of `options`,
    /// the parameters and the timeout apply.
    ///
    /// Dropping the future gives up: the queue pair and the id are destroyed, and the peer learns
    /// of it. A server accepts each peer in a task of its own, so that none delays others.
    ///
    /// # Errors
    ///
    /// A [`ConnectionError`] that names the peer: `Disconnected` if it has given up; `Timeout`;
    /// errors of `setup`, of the connection manager and of the executor.
    pub async fn accept<R: Readiness>(
        self,
        options: &ConnectionOptions,
        wait: impl Fn(BorrowedFd<'_>) -> io::Result<R>,
        setup: impl FnOnce(&Setup<'_>) -> Result<InitializedQueuePair<Rc>>,
    ) -> Result<(Connection<R>, QueuePair<Rc>), ConnectionError> {
        let peer = self.peer_addr();
        let accepted = self.accept_peer(options, wait, setup).await;
        accepted.map_err(|failure| ConnectionError::new(peer, failure))
    }

    async fn accept_peer<R: Readiness>(
        self,
        options: &ConnectionOptions,
        wait: impl Fn(BorrowedFd<'_>) -> io::Result<R>,
        setup: impl FnOnce(&Setup<'_>) -> Result<InitializedQueuePair<Rc>>,
    ) -> Result<(Connection<R>, QueuePair<Rc>), Failure> {
        let (id, channel) = self.request.id();
        let mut attempt = Attempt::new(channel, &wait, options.timeout).map_err(failure)?;
        let qp = setup(&Setup { id }).map_err(failure)?;
        let accepting = self.request.begin(qp, &options.parameters);
        let accepting = accepting.map_err(|failed| (failed.error, failed.private_data))?;
        let established = attempt.wait(accepting.id.key(), Verb::Accept, is_established).await;
        let (inner, qp) = accepting.finish(established).map_err(|failed| (failed.error, failed.private_data))?;
        Ok((Connection { inner, readiness: attempt.end() }, qp))
    }
}

/// An established connection; the queue pair is a separate object. Dropping it ends the connection:
/// the peer sees a disconnect.
#[derive(Debug)]
pub struct Connection<R> {
    inner: blocking::Connection,
    readiness: R,
}

impl<R: Readiness> Connection<R> {
    getters! { |this|
        /// The peer's private data, from its request or its answer; padded with zeros on InfiniBand
        /// and RoCE.
        private_data: &[u8] = this.inner.private_data();
        /// The local address.
        local_addr: Option<SocketAddr> = this.inner.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.inner.peer_addr();
        /// The connection in the form for threads that block.
        connection: &blocking::Connection = &this.inner;
    }

    /// Ends the connection, or answers the peer that has ended it:
    /// [`blocking::Connection::disconnect`]. `qp` is the queue pair, or the control of one of its
    /// halves.
    ///
    /// # Errors
    ///
    /// As for [`Id::disconnect`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect<'a>(&self, qp: impl Into<QpControl<'a, Rc>>) -> Result<()> {
        self.inner.disconnect(qp)
    }

    /// Waits until either side has ended the connection. Dropping the future loses nothing.
    ///
    /// The side that ends the connection waits for the answer of the other: that side calls
    /// [`disconnect`](Self::disconnect) too, or drops its connection. Without an answer the wait
    /// lasts until the connection manager gives up, some minutes.
    ///
    /// # Errors
    ///
    /// Errors of the connection manager and of the executor.
    pub async fn disconnected(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_disconnected(cx)).await
    }

    /// Polls whether either side has ended the connection: [`disconnected`](Self::disconnected).
    ///
    /// # Errors
    ///
    /// As for [`disconnected`](Self::disconnected).
    pub fn poll_disconnected(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        loop {
            if self.inner.wait_disconnected(Some(Duration::ZERO))? {
                return Poll::Ready(Ok(()));
            }
            let readable = ready!(self.readiness.poll_readable(cx));
            readable.map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
        }
    }
}

/// The reason why there is no connection.
#[derive(Clone)]
#[non_exhaustive]
pub struct ConnectionError {
    /// The address of the peer.
    pub peer: Option<SocketAddr>,
    /// The cause.
    pub error: Error,
    /// The peer's private data, if it has rejected.
    pub private_data: PrivateData,
}

impl ConnectionError {
    fn new(peer: Option<SocketAddr>, (error, private_data): Failure) -> Self {
        Self { peer, error, private_data }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "no connection with {peer}: {}", self.error),
            None => write!(f, "no connection: {}", self.error),
        }
    }
}

debug_is_display!(ConnectionError);

impl std::error::Error for ConnectionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<ConnectionError> for Error {
    fn from(error: ConnectionError) -> Self {
        error.error
    }
}
