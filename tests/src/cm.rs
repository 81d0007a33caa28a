//! Helpers for tests of the connection manager: the device's addresses, and connected pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma::cm::blocking::{self, Connection, ListenOptions, Listener};
use rdma::cm::{ConnOptions, EventChannel};
use rdma::transport::Rc;
use rdma::{CompletionQueue, Context, ErrorKind, InitializedQueuePair, PreparedQueuePair, ProtectionDomain, QueuePair};

use crate::LIMIT;
use crate::report::timed_out;

/// Environment variable with an IPv4 address of the device under test, for a device whose GIDs
/// contain none.
pub const ADDRESS: &str = "RDMA_TEST_ADDRESS";
/// Environment variable with an IPv6 address of the device under test.
pub const ADDRESS6: &str = "RDMA_TEST_ADDRESS6";
/// Environment variable with the number of the host on which the process runs, where the second
/// process of a test is on another one.
const HOST: &str = "RDMA_TEST_HOST";

/// An address of the device: from the environment, or from an IPv4-mapped GID. The environment
/// tells the address of hardware and of one of several hosts, so another software device has its
/// own.
///
/// # Panics
///
/// If the device has no address, although the environment promises a device with one.
#[must_use]
pub fn address(context: &Context) -> IpAddr {
    if let (Ok(text), false) = (std::env::var(ADDRESS), context.is_software() && std::env::var_os(HOST).is_none()) {
        return text.parse().unwrap_or_else(|error| panic!("{ADDRESS}={text}: {error}"));
    }
    let gids = (1..=context.port_count()).flat_map(|port| context.gid_table(port).expect("GIDs"));
    let mut addresses = gids.filter_map(|entry| entry.gid.ipv4());
    if context.is_software() {
        // The last address of a software device is its own loopback address.
        return addresses.next_back().unwrap_or(Ipv4Addr::LOCALHOST).into();
    }
    addresses.next().unwrap_or_else(|| panic!("no IPv4 address: set {ADDRESS}")).into()
}

/// An IPv6 address of the device, if it has one.
///
/// # Panics
///
/// If the environment's text is no address.
#[must_use]
pub fn address6(context: &Context) -> Option<IpAddr> {
    if let Ok(text) = std::env::var(ADDRESS6) {
        return Some(text.parse().unwrap_or_else(|error| panic!("{ADDRESS6}={text}: {error}")));
    }
    context.is_software().then_some(Ipv6Addr::LOCALHOST.into())
}

/// A free port of an address.
#[must_use]
pub fn any_port(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, 0)
}

/// The objects that the queue pairs of one side share.
#[derive(Debug)]
pub struct End {
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The completion queue of both queues.
    pub cq: CompletionQueue,
}

impl End {
    /// Creates the objects of one side.
    ///
    /// # Panics
    ///
    /// If the device cannot create them.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().expect("a protection domain");
        Self { cq: context.create_cq(64).expect("a completion queue"), pd }
    }

    /// Creates a queue pair.
    ///
    /// # Panics
    ///
    /// If the device cannot create one.
    #[must_use]
    pub fn qp(&self) -> PreparedQueuePair<Rc> {
        QueuePair::builder(&self.pd).cq(&self.cq).build().expect("a queue pair")
    }
}

/// Whether the device has a connection manager; reports the test as skipped if not.
///
/// # Panics
///
/// If the connection manager fails for another reason than its absence.
#[must_use]
pub fn available(context: &Context) -> bool {
    match EventChannel::of(context) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotSupported => {
            crate::skip(&format!("no connection manager: {error}"));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Creates a listener at a free port of the device.
///
/// # Panics
///
/// If the device cannot create one.
#[must_use]
pub fn listen(context: &Context) -> Listener {
    Listener::bind(context, any_port(address(context)), &ListenOptions::new()).expect("a listener")
}

/// Creates an identifier with the route to a listener.
///
/// # Panics
///
/// If there is no route.
#[must_use]
pub fn resolve(context: &Context, to: SocketAddr) -> blocking::Resolved<Rc> {
    blocking::resolve(context, None, to, LIMIT).expect("a route")
}

/// Connects a queue pair to a listener.
///
/// # Panics
///
/// If the connection fails.
#[must_use]
pub fn connect(
    context: &Context,
    to: SocketAddr,
    qp: PreparedQueuePair<Rc>,
    options: &ConnOptions,
) -> (Connection, QueuePair<Rc>) {
    let route = resolve(context, to);
    let qp = route.init(qp).expect("INIT");
    route.connect(qp, options, LIMIT).expect("a connection")
}

/// Accepts the next connection of a listener.
///
/// # Panics
///
/// If no request comes, or accepting fails.
#[must_use]
pub fn accept(listener: &Listener, qp: PreparedQueuePair<Rc>, options: &ConnOptions) -> (Connection, QueuePair<Rc>) {
    let request = listener.next_request(Some(LIMIT)).expect("a listener").expect("a request");
    let qp = request.init(qp).expect("INIT");
    request.accept(qp, options, LIMIT).expect("a connection")
}

/// Connects two queue pairs of this process: `active` is the active side.
///
/// # Panics
///
/// If the connection fails.
#[must_use]
pub fn connect_pair(
    context: &Context,
    active: PreparedQueuePair<Rc>,
    passive: PreparedQueuePair<Rc>,
) -> ((Connection, QueuePair<Rc>), (Connection, QueuePair<Rc>)) {
    let listener = listen(context);
    let options = ConnOptions::new();
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| accept(&listener, passive, &options));
        let active = connect(context, listener.local_addr(), active, &options);
        (active, passive.join().expect("the passive end"))
    })
}

/// On iWARP, waits until the other side reports that it has accepted: siw may leave an earlier
/// message unread.
///
/// # Panics
///
/// If no report comes within [`LIMIT`].
#[track_caller]
pub fn wait_accepted(context: &Context, accepted: &AtomicBool) {
    let begin = Instant::now();
    while context.capabilities().active_side_sends_first && !accepted.load(Ordering::Acquire) {
        if begin.elapsed() > LIMIT {
            timed_out("accepted connection", begin.elapsed());
        }
        std::thread::yield_now();
    }
}

/// Binds a queue pair to the device's port before there is a peer, on any device.
///
/// # Panics
///
/// If the transition fails.
#[must_use]
pub fn init_unconnected(
    qp: PreparedQueuePair<Rc>,
    context: &Context,
    access: rdma::RemoteAccess,
) -> InitializedQueuePair<Rc> {
    let channel = EventChannel::of(context).expect("a channel");
    let id = channel.create_id::<Rc>().expect("an id");
    id.bind_addr(any_port(address(context))).expect("an address");
    id.init(qp, access).expect("INIT")
}

/// How long a test waits to verify that nothing happens.
pub const MOMENT: Duration = Duration::from_millis(50);
