//! The listening side.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma::cm::{EventKind, IdKey};
use rdma::transport::Rc;
use rdma::{Context, Error, ErrorKind, Result, Verb};

use super::attempt::Attempt;
use super::connect::prepare;
use super::connection::{Connection, Core, Parts, Pool};
use super::exchange::{Events, Listening};
use super::failure::Failure;
use super::node::Node;
use super::options::ListenOptions;
use super::protocol::{Protocol, Refuse, RefuseCode};
#[cfg(test)]
use super::receives::ReceivePool;
use super::requests::{Pending, Requests, Seat, reject};
use super::tables::{Route, Tables};

/// Waits for peers that connect.
///
/// Dropping the listener refuses the requests that wait; its connections stay.
pub struct Listener {
    seats: Vec<Seating>,
    /// The driver by whose events the requests come.
    tables: Arc<Tables>,
    listening: Listening,
    local_addr: SocketAddr,
    requests: Arc<Requests>,
}

/// A driver that accepts requests of a listener, and its node, which lives as long.
struct Seating {
    node: Node,
    tables: Arc<Tables>,
}

impl Node {
    /// Listens at an address. Port 0 chooses a free port. Requests that arrive on another device
    /// are refused: [`Listener::bind`] serves several devices.
    ///
    /// # Errors
    ///
    /// As for [`cm::blocking::Listener::bind`](rdma::cm::blocking::Listener::bind). With shared
    /// receives `InvalidInput` for fewer than 6 or more than the device supports, or if connections
    /// have domains of their own, `NotSupported` if the device has none, and `OutOfMemory`.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = node()?;
    /// let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new().max_connections(100))?;
    /// println!("listening at {}", listener.local_addr());
    /// # Ok(()) }
    /// ```
    pub fn listen(&self, at: SocketAddr, options: &ListenOptions) -> Result<Listener> {
        listen(std::slice::from_ref(self), at, options)
    }
}

/// Listens at an address, for one or more nodes.
fn listen(nodes: &[Node], at: SocketAddr, options: &ListenOptions) -> Result<Listener> {
    let first = nodes.first().ok_or(Error::new(Verb::Listen, ErrorKind::InvalidInput))?.handle.first();
    let seating = |node: &Node| node.handle.all().map(|tables| (node.clone(), Arc::clone(tables))).collect::<Vec<_>>();
    let seats: Vec<_> = nodes.iter().flat_map(seating).map(|(node, tables)| Seating { node, tables }).collect();
    let parts = seats.iter().map(|seating| seat(&seating.tables, first, options)).collect::<Result<_>>()?;
    if nodes.len() > 1 && matches!(first.events, Events::Tcp(_)) {
        // The connection of a socket says nothing of the device that its peer will reach.
        return Err(Error::new(Verb::Listen, ErrorKind::NotSupported));
    }
    let requests = Arc::new(Requests::new(options.clone(), parts));
    // The first driver that lives: the listener of one that is gone would hear of no request.
    let living = seats.iter().find(|seating| seating.tables.shared.load.is_open());
    let tables = Arc::clone(living.map_or(first, |seating| &seating.tables));
    let listening = bind(&tables, at, &requests)?;
    let mut listener = Listener { seats, tables, local_addr: at, listening, requests };
    listener.local_addr = listener.listening.local_addr().ok_or(unknown())?;
    Ok(listener)
}

/// The part of a driver in a listener of others like the first.
fn seat(tables: &Tables, first: &Tables, options: &ListenOptions) -> Result<Seat> {
    tables.check(Verb::Listen)?;
    if options.shared_receives.is_some() && tables.shared.options.separate_domains {
        tracing::debug!(
            name: "listen_refused", target: "rdma_net",
            "receives of one domain cannot be shared by connections that have domains of their own"
        );
        return Err(Error::new(Verb::CreateSrq, ErrorKind::InvalidInput));
    }
    let context = tables.shared.domain.pd.context();
    if !tables.events.is_like(&first.events) || !are_siblings(&context, &first.shared.domain.pd.context()) {
        tracing::debug!(
            name: "listen_refused", target: "rdma_net",
            "nodes with different ways to connect cannot share a listener"
        );
        return Err(Error::new(Verb::Listen, ErrorKind::InvalidInput));
    }
    let pool = options.shared_receives.map(|count| tables.new_pool(count)).transpose()?;
    Ok(Seat::new(context.name(), pool, Arc::clone(&tables.shared.load)))
}

/// Whether two devices are of one library, and so of one connection manager.
fn are_siblings(one: &Context, other: &Context) -> bool {
    std::ptr::eq(one.table(), other.table())
}

/// Listens for requests, which come by events of an id of its own.
fn bind(tables: &Tables, at: SocketAddr, requests: &Arc<Requests>) -> Result<Listening> {
    let backlog = requests.options.backlog;
    let route = |key| tables.set_route(key, Route::Listener(Arc::clone(requests))).map_err(|_| unknown());
    match &tables.events {
        Events::Manager(events) => {
            let id = events.create_id::<Rc>()?;
            // On iWARP the accepted sockets have the class of the listener. Each connection takes
            // the options of its own node when it is accepted, which go before this class.
            if let Some(class) = tables.shared.options.path_options().traffic_class {
                id.set_tos(class)?;
            }
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
    /// Listens for several nodes, for example one on each NIC of the host. Port 0 chooses a free
    /// port.
    ///
    /// A request becomes a connection of a node on the device that it arrives on:
    /// [`Incoming::node`] says which. Of several nodes on one device, the one with the fewest
    /// connections takes the next, so that their drivers share the load; a node that has ended
    /// takes none. A request on any other device is refused. With
    /// [shared receives](ListenOptions::shared_receives), each driver of each node has as many.
    ///
    /// The first driver that lives takes the requests of all; the listener ends with it.
    ///
    /// # Errors
    ///
    /// As for [`Node::listen`]; `InvalidInput` without a node, or for nodes whose devices have
    /// different connection managers, as hardware and `soft0` have; `NotSupported` for several
    /// nodes that exchange over TCP.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdma::{Context, Device};
    /// use rdma_net::{ListenOptions, Listener, Node, NodeOptions};
    ///
    /// // One node, with its driver, on each NIC.
    /// let mut nodes = Vec::new();
    /// for device in Device::list()?.iter().filter(|device| !device.is_software()) {
    ///     let (node, driver) = Node::new(&device.open()?, &NodeOptions::new())?;
    ///     std::thread::spawn(move || driver.run_blocking());
    ///     nodes.push(node);
    /// }
    /// let listener = Listener::bind(&nodes, "0.0.0.0:7174".parse()?, &ListenOptions::new())?;
    /// # drop(listener);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind(nodes: &[Node], at: SocketAddr, options: &ListenOptions) -> Result<Self> {
        listen(nodes, at, options)
    }

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
        let Seating { node, tables } = self.seats.get(pending.seat).ok_or(unknown())?;
        let (node, tables) = (node.clone(), Arc::clone(tables));
        Ok(Incoming { node, tables, pending, options: self.requests.options.clone() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tables.remove_route(self.listening.key());
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

/// A peer's request to connect. Accept or refuse it; dropping it refuses.
pub struct Incoming {
    node: Node,
    /// Those of the driver that will have the connection.
    tables: Arc<Tables>,
    pending: Pending,
    options: ListenOptions,
}

impl Incoming {
    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.pending.request.peer_addr()
    }

    /// The node that the connection will be of: one on the device that the request arrived on.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
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
        let (tables, shared) = (&self.tables, &self.tables.shared);
        let Pending { mut request, hello, ticket, load, stake, seat: _ } = self.pending;
        let shares = stake.is_some();
        // The route comes first: with the request, its events move to the node's channel.
        let moved = Attempt::new(tables, request.key())
            .and_then(|attempt| request.move_to(&tables.events).map(|()| attempt).map_err(Failure::from));
        let attempt = match moved {
            Ok(attempt) => attempt,
            Err(failure) => {
                reject(request, &Refuse::new(RefuseCode::Unavailable, failure.to_string()));
                return Err(failure);
            }
        };
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
            load,
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
