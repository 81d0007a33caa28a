//! The passive end.

use std::fmt;
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
use crate::error::{Error, ErrorKind, Failed, Operation, Result};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QueuePair, Rc};
use crate::types::RemoteAccess;
use crate::wait::Deadline;

/// How to listen.
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
    tos: Option<u8>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, reuse_addr: false, af_only: false, tos: None }
    }
}

impl ListenOptions {
    /// Up to 128 requests wait; the address is ours alone.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// How many requests may wait for an answer; 0: as many as the system allows.
        backlog(count: u32) = count;
        /// Whether others that allow it too may bind to the same address.
        reuse_addr(reuse: bool) = reuse;
        /// Whether the unspecified IPv6 address stands for IPv6 only.
        af_only(only: bool) = only;
        /// The type of service of its connections.
        tos(tos: u8) = Some(tos);
    }
}

/// Waits for peers that want to connect; with `Listener<Ud>`, that want to know where to send
/// datagrams.
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
}

impl<T: PortSpace> Listener<T> {
    /// Listens at an address of the context's device, or with the unspecified address at all of
    /// them. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// `NoRoute` if the address is no RDMA device's of this host, `WrongDevice` if it is another's,
    /// `AddressInUse`; those of [`EventChannel::new`].
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
        let channel = EventChannel::new(context)?;
        let id = channel.create_id::<T>()?;
        if options.reuse_addr {
            id.set_reuse_addr(true)?;
        }
        if options.af_only {
            id.set_af_only(true)?;
        }
        if let Some(tos) = options.tos {
            id.set_tos(tos)?;
        }
        id.bind_addr(address)?;
        if id.device_name().is_some() {
            id.raw.check_device(Operation::BindAddr, context)?;
        }
        id.listen(options.backlog)?;
        let local_addr = id.local_addr().ok_or(Error::new(Operation::Listen, ErrorKind::Unknown))?;
        Ok(Self { id, channel, local_addr })
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Waits for the next peer; none after the timeout. Without a timeout it waits for ever.
    ///
    /// A peer that comes by another device than the context's is rejected.
    ///
    /// # Errors
    ///
    /// `NoDevice` once the device is removed; what librdmacm reports, for example no more file
    /// descriptors.
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
        // Peers that are not for us do not take us past it for ever.
        while !deadline.is_over() || looks.next().is_some() {
            let Some(event) = self.channel.next_event_until(deadline)? else {
                if deadline.is_over() {
                    break;
                }
                continue;
            };
            let request = match event.kind {
                EventKind::DeviceRemoval => return Err(Error::new(Operation::GetCmEvent, ErrorKind::NoDevice)),
                kind => T::request(kind),
            };
            let Some(request) = request else { continue };
            if let Err(error) = request.id().raw.check_device(Operation::Accept, self.channel.context()) {
                tracing::warn!(%error, peer = ?request.peer_addr(), "a connection was rejected");
                continue;
            }
            return IncomingConnection::new(request).map(Some);
        }
        Ok(None)
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> &Id<T> {
        &self.id
    }
}

lends_descriptor! {
    /// The descriptor that becomes readable when somebody wants to connect: then
    /// [`Listener::next_request`] with no time to wait.
    Listener<T: PortSpace>, channel
}

impl<T: PortSpace> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

/// A peer that wants to connect. Accept or reject it; dropping it rejects.
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
    /// On a channel of its own, so that whoever accepts it waits for nobody else's events.
    fn new(mut request: ConnectRequest<T>) -> Result<Self> {
        let channel = EventChannel::new(request.id().context())?;
        request.migrate(&channel)?;
        Ok(Self { request, channel })
    }

    getters! { |this|
        /// What the peer had to say, on InfiniBand and RoCE filled up with zeros.
        private_data: &[u8] = this.request.private_data();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.request.peer_addr();
        /// Our own address.
        local_addr: Option<SocketAddr> = this.request.local_addr();
    }

    /// Says no, and why: [`ConnectRequest::reject`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }

    /// The request.
    #[must_use]
    pub fn request(&self) -> &ConnectRequest<T> {
        &self.request
    }

    /// The request, to be answered in the form for event loops, and the channel that it is on.
    #[must_use]
    pub fn into_request(self) -> (ConnectRequest<T>, EventChannel) {
        (self.request, self.channel)
    }
}

impl IncomingConnection<Rc> {
    /// What the peer asks for.
    #[must_use]
    pub fn parameters(&self) -> &ConnectionParameters {
        self.request.parameters()
    }

    /// Binds a queue pair to the port that the request came by, open to all remote operations that
    /// the device has.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Rc>) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        let access = qp.all_access();
        self.request.init(qp, access)
    }

    /// The same, and `access` is what the peer may do, to regions that allow it too.
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

    /// Says yes, and waits until the connection is there.
    ///
    /// On iWARP the end that connected must be the first to send: what comes before it is ready
    /// ends the connection. On siw it better waits until this has returned: see
    /// [there](crate::cm#order-of-things).
    ///
    /// # Errors
    ///
    /// With the queue pair, which wants to be [reset](InitializedQueuePair::reset) before it is
    /// used again (on iWARP, to be made anew if anything is posted to it): `Timeout` if the peer
    /// does not answer, `Disconnected` if it has gone; `TooLong` for the private data; what
    /// librdmacm or the provider reports. The request is over then.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma::cm::{ConnOptions, blocking::IncomingConnection};
    /// # use rdma::{CompletionQueue, ProtectionDomain};
    ///
    /// # type Parts<'a> = (&'a ProtectionDomain, &'a CompletionQueue);
    /// # fn f(request: IncomingConnection, (pd, cq): Parts<'_>) -> Result<(), rdma::Error> {
    /// let mut qp = request.init(pd.queue_pair().cq(cq).build()?)?;
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
        let established = wait_for(&channel, Operation::Accept, deadline, |kind| match kind {
            EventKind::Established(accepted) => Some(accepted),
            _ => None,
        });
        match established {
            Ok(_) => Ok((Connection::new(id, channel, private_data, peer), qp.into_manual())),
            Err((error, private_data)) => {
                // Whoever rejects what was accepted has given up.
                let gone = matches!(error.kind(), ErrorKind::Rejected(_) | ErrorKind::NotListening);
                let error = if gone { Error::new(Operation::Accept, ErrorKind::Disconnected) } else { error };
                Err(ConnectError { private_data, ..ConnectError::new(error, qp) })
            }
        }
    }
}

/// Answers the peer's enhanced connection options with ours, as librdmacm does for its own queue
/// pairs.
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

impl<T: PortSpace> fmt::Debug for IncomingConnection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingConnection").field("request", &self.request).finish_non_exhaustive()
    }
}
