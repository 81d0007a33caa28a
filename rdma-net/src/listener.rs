//! The listening side.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma::cm::{EventKind, IdKey};
use rdma::transport::Rc;
use rdma::{Error, ErrorKind, Result, Verb};

use super::attempt::Attempt;
use super::connect::prepare;
use super::connection::{Connection, Core, Parts, Pool};
use super::exchange::{Events, Listening};
use super::failure::Failure;
use super::options::ListenOptions;
use super::protocol::{Protocol, Refuse, RefuseCode};
#[cfg(test)]
use super::receives::ReceivePool;
use super::requests::{Pending, Requests, reject};
use super::tables::{Handle, Route, Tables};

/// Waits for peers that connect.
///
/// Dropping the listener refuses the requests that wait; its connections stay.
pub struct Listener {
    handle: Arc<Handle>,
    listening: Listening,
    local_addr: SocketAddr,
    requests: Arc<Requests>,
}

/// Listens at an address.
pub(super) fn listen(handle: &Arc<Handle>, at: SocketAddr, options: &ListenOptions) -> Result<Listener> {
    let tables = &handle.tables;
    tables.check(Verb::Listen)?;
    if options.shared_receives.is_some() && tables.shared.options.separate_domains {
        tracing::debug!("receives of one domain cannot be shared by connections that have domains of their own");
        return Err(Error::new(Verb::CreateSrq, ErrorKind::InvalidInput));
    }
    let pool = options.shared_receives.map(|count| tables.new_pool(count)).transpose()?;
    let requests = Arc::new(Requests::new(options.clone(), pool));
    let listening = bind(tables, at, &requests)?;
    let mut listener = Listener { handle: Arc::clone(handle), local_addr: at, listening, requests };
    listener.local_addr = listener.listening.local_addr().ok_or(unknown())?;
    Ok(listener)
}

/// Listens for requests, which come by events of an id of its own.
fn bind(tables: &Tables, at: SocketAddr, requests: &Arc<Requests>) -> Result<Listening> {
    let backlog = requests.options.backlog;
    let route = |key| tables.set_route(key, Route::Listener(Arc::clone(requests))).map_err(|_| unknown());
    match &tables.events {
        Events::Manager(events) => {
            let id = events.create_id::<Rc>()?;
            id.bind_addr(at)?;
            route(id.key())?;
            let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
            id.listen(backlog).inspect_err(|_| tables.remove_route(id.key()))?;
            Ok(Listening::Manager(id))
        }
        Events::Tcp(sockets) => {
            let key = IdKey::fresh();
            route(key)?;
            let end = sockets.listen(key, at, backlog, tables.shared.options.timeout);
            end.inspect_err(|_| tables.remove_route(key)).map(Listening::Tcp)
        }
    }
}

fn unknown() -> Error {
    Error::new(Verb::Listen, ErrorKind::Unknown)
}

impl Listener {
    /// The local address, with the chosen port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The shared receives that no connection may use.
    #[cfg(test)]
    pub(super) fn free_receives(&self) -> i64 {
        self.requests.free_receives()
    }

    /// The number of requests that wait to be accepted.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.requests.waiting()
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> Option<&ReceivePool> {
        self.requests.pool()
    }

    /// Waits for the next request. Requests that break the protocol or a limit are refused
    /// without notice.
    ///
    /// Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// `DriverGone`; `Closed` once the node [shuts down](super::Node::shutdown); `Local` if the
    /// device is gone.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (mut listener, node) = (listener()?, node()?);
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || block_on(node.connect(address)).map(drop));
    /// let incoming = block_on(listener.accept())?;
    /// println!("{:?} asks for a connection", incoming.peer_addr());
    /// let connection = block_on(incoming.accept())?;
    /// # drop(connection);
    /// # client.join().expect("no panic")?;
    /// # Ok(()) }
    /// ```
    pub async fn accept(&mut self) -> Result<Incoming, Failure> {
        let pending = poll_fn(|cx| self.requests.poll_next(cx)).await?;
        Ok(Incoming { handle: Arc::clone(&self.handle), pending, options: self.requests.options.clone() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.tables.remove_route(self.listening.key());
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

/// A peer's request to connect. Accept or refuse it; dropping it refuses.
pub struct Incoming {
    handle: Arc<Handle>,
    pending: Pending,
    options: ListenOptions,
}

impl Incoming {
    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.pending.request.peer_addr()
    }

    /// Refuses the request, with up to 100 bytes of text for the peer.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (mut listener, node) = (listener()?, node()?);
    /// use rdma_net::{FailureKind, RefuseCode};
    ///
    /// # let address = listener.local_addr();
    /// let client = std::thread::spawn(move || block_on(node.connect(address)));
    /// block_on(async {
    ///     listener.accept().await?.refuse("closed for maintenance");
    ///     Ok::<(), Failure>(())
    /// })?;
    /// let failure = client.join().expect("no panic").unwrap_err();
    /// assert_eq!((failure.kind(), failure.refuse_code()), (FailureKind::Refused, Some(RefuseCode::Application)));
    /// assert!(failure.to_string().contains("closed for maintenance"));
    /// # Ok(()) }
    /// ```
    pub fn refuse(self, text: &str) {
        reject(self.pending.request, &Refuse::new(RefuseCode::Application, text));
    }

    /// Accepts, and waits until the connection is established: for the node's
    /// [`timeout`](super::NodeOptions::timeout) if the peer falls silent. A server accepts each
    /// peer in a task of its own, so that none delays others.
    ///
    /// # Errors
    ///
    /// `PeerGone` if the peer has given up; `Protocol` if its first messages break the protocol;
    /// `Timeout`; `DriverGone`; `Local` for errors of the device, and if the node has no space for
    /// another connection. The peer learns of these as a refusal: `Busy`, or `Unavailable`.
    pub async fn accept(self) -> Result<Connection, Failure> {
        let (tables, shared) = (&self.handle.tables, &self.handle.tables.shared);
        let Pending { request, hello, ticket, stake } = self.pending;
        let shares = stake.is_some();
        let attempt = Attempt::new(tables, request.key())?;
        let key = tables.new_key();
        let prepared = shared.connection_domain().and_then(|domain| {
            let mut pool = Pool::new(domain, &shared.options, shares)?;
            let qp = prepare(shared, &mut pool, key, stake.as_ref(), |qp, access| request.init(shared, qp, access))?;
            Ok((qp, pool))
        });
        let (qp, pool) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                reject(request, &refusal(&error));
                return Err(error.into());
            }
        };
        let agreed = shared.hello(shares).agree(&hello);
        let parts = Parts {
            key,
            id: request.key(),
            port: qp.port(),
            local_addr: request.local_addr(),
            peer_addr: request.peer_addr(),
            protocol: Protocol::new(agreed, shared.options.slots(shares), Instant::now()),
            pool,
            ticket: Some(ticket),
            sharing: stake.map(|stake| (stake, qp.qpn())),
        };
        let core = Core::new(shared, parts);
        tables.add(&core)?;
        let connection = Connection::new(&core);
        core.connect(|| request.accept(shared, qp, shares))?;
        let established = |event| matches!(event, EventKind::Established(_)).then_some(());
        let established = attempt.wait(shared.options.timeout, established).await;
        core.check(established.and_then(|()| attempt.hand_over(&core)))?;
        core.limit_silence(self.options.first_message, self.options.idle);
        Ok(connection)
    }
}

/// What a peer is told whose connection could not be made.
fn refusal(error: &Error) -> Refuse {
    let is_full = matches!(error.kind(), ErrorKind::CompletionQueueTooSmall { .. } | ErrorKind::OutOfMemory)
        || matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOSPC));
    if is_full {
        return Refuse::new(RefuseCode::Busy, "the node has no room for another connection");
    }
    Refuse::new(RefuseCode::Unavailable, error.to_string())
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}
