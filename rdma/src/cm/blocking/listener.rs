//! The passive side: listen, then accept or reject.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{ConnectError, Connection};
use super::{LAST_LOOKS, apply_ece, deadline, ece, wait_for};
use crate::cm::event::EventKind;
use crate::cm::id::Id;
use crate::cm::message::ConnectionParameters;
use crate::cm::request::ConnectRequest;
use crate::cm::{ConnOptions, EventChannel, PortSpace};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QueuePair};
use crate::transport::Rc;
use crate::types::{PathOptions, RemoteAccess};
use crate::wait::Deadline;

/// Options of a listener.
///
/// # Examples
///
/// ```
/// use rdma::cm::blocking::ListenOptions;
/// let options = ListenOptions::new().backlog(1024).reuse_addr(true);
/// # let _ = options;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct ListenOptions {
    backlog: u32,
    reuse_addr: bool,
    af_only: bool,
    path: PathOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, reuse_addr: false, af_only: false, path: PathOptions::new() }
    }
}

impl ListenOptions {
    /// Default options: up to 128 requests wait, and the address is not shared.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// How many requests may wait for an answer; 0 means as many as the system allows.
        backlog(count: u32) = count;
        /// Whether other listeners that allow it too may bind to the same address.
        reuse_addr(reuse: bool) = reuse;
        /// Whether the unspecified IPv6 address stands for IPv6 only.
        af_only(only: bool) = only;
        /// The options of the path of the listener's connections: [`Id::set_path`].
        path(path: PathOptions) = path;
    }
}

/// Waits for peers that request connections; a `Listener<Ud>` waits for peers that ask where to
/// send datagrams.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// use std::time::Duration;
/// use rdma::cm::blocking::{ListenOptions, Listener};
///
/// let any_port = "127.0.0.1:0".parse()?;
/// let listener: Listener = Listener::bind(&context, any_port, &ListenOptions::new())?;
/// while let Some(request) = listener.next_request(Some(Duration::from_millis(1)))? {
///     println!("{:?} connects", request.peer_addr());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listener<T: PortSpace = Rc> {
    id: Id<T>,
    channel: EventChannel,
    local_addr: SocketAddr,
    /// The context whose device alone is served.
    only: Option<Context>,
}

impl<T: PortSpace> Listener<T> {
    /// Listens at an address of the context's device, or, with the unspecified address, at all its
    /// addresses. Port 0 chooses a free port. Requests on other devices are rejected:
    /// [`on`](Self::on) serves all devices.
    ///
    /// # Errors
    ///
    /// `NoRoute` if no RDMA device of this host has the address; `WrongDevice` if another device
    /// than the context's has it; `AddressInUse`; the errors of [`Id::set_path`] and of
    /// [`EventChannel::of`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use rdma::cm::blocking::{ListenOptions, Listener};
    ///
    /// let options = ListenOptions::new().backlog(1024);
    /// let listener: Listener = Listener::bind(&context, "127.0.0.1:0".parse()?, &options)?;
    /// println!("clients connect to {}", listener.local_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_listen")]
    pub fn bind(context: &Context, address: SocketAddr, options: &ListenOptions) -> Result<Self> {
        Self::bind_id(EventChannel::of(context)?, Some(context.clone()), address, options)
    }

    /// Listens at an address of any device, or, with the unspecified address, at all addresses of
    /// all devices. Port 0 chooses a free port.
    ///
    /// Each request tells the context of its device: [`IncomingConnection::context`]. The channel
    /// becomes the listener's own: the listener drops the events of other ids.
    ///
    /// # Errors
    ///
    /// `NoRoute` if no RDMA device of this host has the address; `AddressInUse`; errors of
    /// librdmacm.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::collections::HashMap;
    /// use std::time::Duration;
    /// use rdma::cm::blocking::{ListenOptions, Listener};
    /// use rdma::cm::{ConnOptions, EventChannel};
    /// use rdma::QueuePair;
    ///
    /// let channel = EventChannel::new()?;
    /// let listener: Listener = Listener::on(channel, "0.0.0.0:7174".parse()?, &ListenOptions::new())?;
    /// // The domain and the completion queue of each device.
    /// let mut devices = HashMap::new();
    /// while let Some(request) = listener.next_request(None)? {
    ///     let context = request.context()?;
    ///     if !devices.contains_key(&context.name()) {
    ///         devices.insert(context.name(), (context.alloc_pd()?, context.create_cq(1024)?));
    ///     }
    ///     let (pd, cq) = &devices[&context.name()];
    ///     let mut qp = request.init(QueuePair::builder(pd).cq(cq).build()?)?;
    ///     qp.post_recv(pd.allocate(64)?, 1)?;
    ///     let accepted = request.accept(qp, &ConnOptions::new(), Duration::from_secs(10))?;
    ///     # drop(accepted);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_listen")]
    pub fn on(channel: EventChannel, address: SocketAddr, options: &ListenOptions) -> Result<Self> {
        Self::bind_id(channel, None, address, options)
    }

    fn bind_id(
        channel: EventChannel,
        only: Option<Context>,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self> {
        let id = channel.create_id::<T>()?;
        id.set_path(&options.path)?;
        if options.reuse_addr {
            id.set_reuse_addr(true)?;
        }
        if options.af_only {
            id.set_af_only(true)?;
        }
        id.bind_addr(address)?;
        if let Some(context) = only.as_ref().filter(|_| id.device_name().is_some()) {
            id.raw.check_device(Verb::BindAddr, context)?;
        }
        id.listen(options.backlog)?;
        let local_addr = id.local_addr().ok_or(Error::new(Verb::Listen, ErrorKind::Unknown))?;
        Ok(Self { id, channel, local_addr, only })
    }

    /// The local address, with the chosen port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Waits for the next request; returns `None` after the timeout. Without a timeout, waits
    /// forever.
    ///
    /// A listener [of one device](Self::bind) rejects a request that arrives on another.
    ///
    /// # Errors
    ///
    /// `NoDevice` once the device of the listener's address is removed; errors of librdmacm, for
    /// example when file descriptors run out.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use std::time::Duration;
    /// use rdma::cm::blocking::{ListenOptions, Listener};
    ///
    /// let any_port = "127.0.0.1:0".parse()?;
    /// let listener: Listener = Listener::bind(&context, any_port, &ListenOptions::new())?;
    /// let request = listener.next_request(Some(Duration::from_millis(1)))?;
    /// assert!(request.is_none(), "nobody connects");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_request(&self, timeout: Option<Duration>) -> Result<Option<IncomingConnection<T>>> {
        let deadline = Deadline::after(timeout);
        let mut looks = 0..LAST_LOOKS;
        // Rejected requests and other events must not extend the deadline without limit.
        while !deadline.is_over() || looks.next().is_some() {
            let Some(event) = self.channel.next_event_until(deadline)? else {
                if deadline.is_over() {
                    break;
                }
                continue;
            };
            if event.id != self.id.key() {
                continue;
            }
            let request = match event.kind {
                EventKind::DeviceRemoval => return Err(Error::new(Verb::GetCmEvent, ErrorKind::NoDevice)),
                kind => T::request(kind),
            };
            let Some(request) = request else { continue };
            let served = self.only.as_ref().map(|only| request.id().raw.check_device(Verb::Accept, only));
            if let Some(Err(error)) = served {
                tracing::warn!(
                    name: "request_rejected", target: "rdma",
                    %error, peer = ?request.peer_addr(), "a connection was rejected"
                );
                continue;
            }
            return IncomingConnection::new(request, &self.channel).map(Some);
        }
        Ok(None)
    }

    /// The connection manager's id of the listener.
    #[must_use]
    pub fn id(&self) -> &Id<T> {
        &self.id
    }
}

lends_descriptor! {
    /// The descriptor is readable while a request is pending: call [`Listener::next_request`] with
    /// a zero timeout.
    Listener<T: PortSpace>, channel
}

debug_by_methods!(Listener<T: PortSpace>: local_addr);

/// A peer's request for a connection. Accept or reject it; dropping rejects.
///
/// # Examples
///
/// ```
/// use rdma::cm::blocking::IncomingConnection;
///
/// # fn f(request: IncomingConnection) -> Result<(), rdma::Error> {
/// if request.private_data().starts_with(b"version 1") {
///     println!("{:?} is welcome", request.peer_addr());
/// } else {
///     request.reject(b"version 1 only")?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct IncomingConnection<T: PortSpace = Rc> {
    pub(super) request: ConnectRequest<T>,
    channel: EventChannel,
}

impl<T: PortSpace> IncomingConnection<T> {
    /// Moves the request to a channel of its own, so that accepting it sees no other id's events.
    fn new(mut request: ConnectRequest<T>, listener: &EventChannel) -> Result<Self> {
        let channel = listener.another()?;
        request.migrate(&channel)?;
        Ok(Self { request, channel })
    }

    getters! { |this|
        /// The peer's private data, padded with zeros on InfiniBand and RoCE.
        private_data: &[u8] = this.request.private_data();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.request.peer_addr();
        /// The local address.
        local_addr: Option<SocketAddr> = this.request.local_addr();
    }

    /// The context of the device that the request arrived on, for the queue pair: [`Id::context`].
    ///
    /// # Errors
    ///
    /// As for [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.request.context()
    }

    /// Rejects the request, with private data that says why: [`ConnectRequest::reject`].
    ///
    /// # Errors
    ///
    /// As for [`ConnectRequest::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }

    /// The request in the form for event loops.
    #[must_use]
    pub fn request(&self) -> &ConnectRequest<T> {
        &self.request
    }
}

impl IncomingConnection<Rc> {
    /// The parameters that the peer asks for.
    #[must_use]
    pub fn parameters(&self) -> &ConnectionParameters {
        self.request.parameters()
    }

    /// Binds a queue pair to the port that the request arrived on, and allows all remote operations
    /// that the device supports.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Rc>) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        let access = qp.all_access();
        self.request.init(qp, access)
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
        self.request.init(qp, access)
    }

    /// Accepts, and waits until the connection is established.
    ///
    /// On iWARP the active side must send first: a message of this side that arrives before the
    /// active side is ready ends the connection. With siw the active side should wait until this
    /// has returned: see [the order of things](crate::cm#order-of-things).
    ///
    /// # Errors
    ///
    /// Returns the queue pair. [Reset](InitializedQueuePair::reset) it before using it again (on
    /// iWARP, make a new one if anything is posted to it). `Timeout` if the peer does not answer;
    /// `Disconnected` if the peer has gone; `TooLong` for the private data; errors of librdmacm or
    /// the provider. The request is consumed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma::cm::{ConnOptions, blocking::IncomingConnection};
    /// # use rdma::{CompletionQueue, ProtectionDomain, QueuePair};
    ///
    /// # type Parts<'a> = (&'a ProtectionDomain, &'a CompletionQueue);
    /// # fn f(request: IncomingConnection, (pd, cq): Parts<'_>) -> Result<(), rdma::Error> {
    /// let mut qp = request.init(QueuePair::builder(pd).cq(cq).build()?)?;
    /// // Before the connection is there: the peer may send at once.
    /// qp.post_recv(pd.allocate(4096)?, 1)?;
    /// let (connection, qp) = request.accept(qp, &ConnOptions::new(), Duration::from_secs(5))?;
    /// # let _ = (connection, qp);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
        timeout: Duration,
    ) -> Result<(Connection, QueuePair<Rc>), ConnectError> {
        let deadline = deadline(timeout);
        let (request, channel) = (self.request, self.channel);
        if let Err(error) = answer_ece(&request, &qp) {
            return Err(ConnectError::new(error, qp));
        }
        let (private_data, peer) = (request.private_data().clone(), *request.parameters());
        let (id, qp) = match request.accept_keeping(qp, options) {
            Ok(accepted) => accepted,
            Err(failed) => {
                let (request, qp) = failed.object;
                drop(request);
                return Err(ConnectError::new(failed.error, qp));
            }
        };
        let established = wait_for((&channel, id.key()), Verb::Accept, deadline, |kind| match kind {
            EventKind::Established(accepted) => Some(accepted),
            _ => None,
        });
        match established {
            Ok(_) => Ok((Connection::new(id, channel, private_data, peer), qp.into_manual())),
            Err((error, private_data)) => {
                // A peer that rejects an accepted request has given up.
                let gone = matches!(error.kind(), ErrorKind::Rejected(_) | ErrorKind::NotListening);
                let error = if gone { Error::new(Verb::Accept, ErrorKind::Disconnected) } else { error };
                Err(ConnectError { private_data, ..ConnectError::new(error, qp) })
            }
        }
    }
}

/// Answers the peer's ECE options with the provider's, as librdmacm does for its own queue pairs.
fn answer_ece(request: &ConnectRequest<Rc>, qp: &InitializedQueuePair<Rc>) -> Result<()> {
    let Some(ours) = ece(qp)? else { return Ok(()) };
    let theirs = match request.remote_ece() {
        Ok(theirs) if theirs.vendor_id != 0 => theirs,
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotSupported => return Ok(()),
        Err(error) => return Err(error),
    };
    apply_ece(qp, ours, theirs)?;
    let agreed = ece(qp)?.unwrap_or_default();
    request.set_local_ece(agreed)
}

debug_by_methods!(IncomingConnection<T: PortSpace>: request);
