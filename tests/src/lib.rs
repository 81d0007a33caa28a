//! Helpers for device tests: the device under test, connected pairs of queue pairs, waits with a
//! limit. The tests run on the device that `RDMA_TEST_DEVICE` names (`rxe0`, `mlx5_0:1`); without
//! the variable, they run on the software device. A named device that is missing is a failure,
//! never a skip. A test of a feature that the device lacks is skipped by [`skip`], with the reason.
//!
//! [`Unconnected`] connects two sides by an exchange of endpoints, or by the connection manager on
//! iWARP, which has no other way; [`read`] reads as each transport can. A fault of a kernel's
//! driver is listed with its reason in `tests/vm/exclude-*.txt`.

pub mod cm;
pub mod datagram;
pub mod report;
pub mod tasks;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{Connection, Listener};
use rdma::op::{self, Opcode};
use rdma::transport::{Connected, Rc, Uc};
use rdma::{
    Buffer, CompletionQueue, ConnectOptions, Context, DeviceSelector, Endpoint, ExposedSlice, InitOptions,
    InitializedQueuePair, Opened, Poller, PreparedQueuePair, ProtectionDomain, QpBuilder, QueuePair, RemoteAccess,
    RemoteSlice, TransportType, WcError,
};
use rdma_test_support::{Channel, role};

pub use rdma_test_support::skip;
use report::Reported;

/// Environment variable that names the device under test.
pub const VARIABLE: &str = "RDMA_TEST_DEVICE";
/// Environment variable that names the device of the second side of a connection, and of a second
/// process; by default the device under test.
pub const PEER_VARIABLE: &str = "RDMA_TEST_PEER_DEVICE";

/// Time limit of each wait of a test; generous, because machines may be slow and shared.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Opens the device under test.
///
/// # Panics
///
/// If the device is missing: a test fails without the device that the environment names.
#[must_use]
pub fn open() -> Opened {
    open_end(role().is_some())
}

/// Opens the device of the other side.
///
/// # Panics
///
/// If the device is missing.
#[must_use]
pub fn open_peer() -> Opened {
    open_end(true)
}

fn open_end(second: bool) -> Opened {
    let peer = if second { std::env::var(PEER_VARIABLE).ok() } else { None };
    let name = peer.or_else(|| std::env::var(VARIABLE).ok()).unwrap_or_else(|| "soft0".into());
    let selector: DeviceSelector = name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
    let opened = rdma::open(&selector).unwrap_or_else(|error| panic!("the device to test on: {error}"));
    report::opened(opened.context.device().name());
    opened
}

/// All remote access rights that a peer can have.
#[must_use]
pub fn all_rights() -> RemoteAccess {
    RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC
}

/// The settings of a test's queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Depth of each queue.
    pub depth: u32,
    /// Most segments of a request.
    pub sges: u32,
    /// Most bytes of inline data.
    pub inline: u32,
    /// The parameters of the connection.
    pub connect: ConnectOptions,
    /// The peer's remote access rights.
    pub access: RemoteAccess,
}

impl Default for Options {
    fn default() -> Self {
        Self { depth: 16, sges: 4, inline: 64, connect: ConnectOptions::new(), access: all_rights() }
    }
}

/// One side of a connection.
#[derive(Debug)]
pub struct Side<T: Connected = Rc> {
    /// The open device.
    pub context: Context,
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The queue pair.
    pub qp: Reported<T>,
    /// Poller of the sends' completions.
    pub sends: Poller,
    /// Poller of the receives' completions.
    pub receives: Poller,
    /// The connection manager's handle of the connection, on iWARP.
    pub connection: Option<Connection>,
}

/// One side of a connection before it is connected.
#[derive(Debug)]
pub struct Unconnected<T: Connected = Rc> {
    /// The open device.
    pub context: Context,
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The queue pair, in INIT: it takes receives.
    pub qp: InitializedQueuePair<T>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    options: Options,
}

impl Unconnected {
    /// Creates a queue pair and brings it to INIT.
    ///
    /// # Panics
    ///
    /// If the device cannot create it.
    #[must_use]
    pub fn new(opened: &Opened, options: Options) -> Self {
        Self::build(opened, options, QueuePair::builder, |qp| {
            if opened.context.capabilities().manual_connect {
                return qp.init(&init_options(opened, options)).expect("INIT");
            }
            cm::init_unconnected(qp, &opened.context, options.access)
        })
    }

    /// Connects to a side in another process, which calls this method too: by an exchange of
    /// endpoints over the channel, or on iWARP by the connection manager.
    ///
    /// # Panics
    ///
    /// If the connection fails.
    #[must_use]
    pub fn meet(self, channel: &mut Channel) -> Side {
        if self.context.capabilities().manual_connect {
            let peer = exchange(channel, &self.qp.endpoint());
            return self.connect(&peer);
        }
        if role().is_some() {
            let listener = cm::listen(&self.context);
            channel.tell(&listener.local_addr().to_string());
            let side = self.accept(&listener);
            channel.tell("accepted");
            return side;
        }
        let side = self.call(channel.hear().parse().expect("an address"));
        // Waits for the peer's accept: siw may leave an earlier message unread.
        assert_eq!(channel.hear(), "accepted");
        side
    }

    fn call(self, to: SocketAddr) -> Side {
        let route = cm::resolve(&self.context, to);
        self.managed(|qp| route.connect(qp, &ConnOptions::new(), LIMIT).expect("a connection"))
    }

    fn accept(self, listener: &Listener) -> Side {
        let request = listener.next_request(Some(LIMIT)).expect("a listener").expect("a request");
        self.managed(|qp| request.accept(qp, &ConnOptions::new(), LIMIT).expect("a connection"))
    }

    fn managed(self, connect: impl FnOnce(InitializedQueuePair<Rc>) -> (Connection, QueuePair<Rc>)) -> Side {
        let (connection, qp) = connect(self.qp);
        Side {
            context: self.context,
            pd: self.pd,
            qp: qp.into(),
            sends: self.send_cq.poller(),
            receives: self.recv_cq.poller(),
            connection: Some(connection),
        }
    }
}

impl Unconnected<Uc> {
    /// Creates a queue pair of an unreliable connection and brings it to INIT.
    ///
    /// # Panics
    ///
    /// If the device cannot create it.
    #[must_use]
    pub fn unreliable(opened: &Opened, options: Options) -> Self {
        Self::build(opened, options, QueuePair::unreliable, |qp| qp.init(&init_options(opened, options)).expect("INIT"))
    }
}

impl<T: Connected> Unconnected<T> {
    fn build(
        opened: &Opened,
        options: Options,
        builder: fn(&ProtectionDomain) -> QpBuilder<T>,
        init: impl FnOnce(PreparedQueuePair<T>) -> InitializedQueuePair<T>,
    ) -> Self {
        let context = opened.context.clone();
        let pd = context.alloc_pd().expect("a protection domain");
        let send_cq = context.create_cq(options.depth).expect("a completion queue");
        let recv_cq = context.create_cq(options.depth).expect("a completion queue");
        let qp = builder(&pd)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(options.depth)
            .max_recv_wr(options.depth)
            .max_send_sge(options.sges)
            .max_recv_sge(options.sges)
            .max_inline_data(options.inline)
            .build()
            .expect("a queue pair");
        Self { context, pd, qp: init(qp), send_cq, recv_cq, options }
    }

    /// Brings the queue pair to RTS, on devices whose queue pairs connect by an exchange of
    /// endpoints.
    ///
    /// # Panics
    ///
    /// If a transition fails.
    #[must_use]
    pub fn connect(self, peer: &Endpoint) -> Side<T> {
        let qp = self.qp.connect(peer, &self.options.connect).expect("RTS");
        Side {
            context: self.context,
            pd: self.pd,
            qp: qp.into(),
            sends: self.send_cq.poller(),
            receives: self.recv_cq.poller(),
            connection: None,
        }
    }
}

fn init_options(opened: &Opened, options: Options) -> InitOptions {
    InitOptions::new().port(opened.port).remote_access(options.access)
}

/// Exchanges endpoints with another process.
///
/// # Panics
///
/// If the other process is gone, or sends another message.
pub fn exchange(channel: &mut Channel, ours: &Endpoint) -> Endpoint {
    channel.send(&ours.to_bytes());
    Endpoint::from_bytes(&channel.receive()).expect("an endpoint")
}

/// Receives a remote slice from another process.
///
/// # Panics
///
/// If the other process is gone, or sends another message.
pub fn receive_slice(channel: &mut Channel) -> RemoteSlice {
    RemoteSlice::from_bytes(&channel.receive_exact::<{ RemoteSlice::LEN }>()).expect("a remote slice")
}

/// Connects two sides of this process.
///
/// # Panics
///
/// If the connection fails.
#[must_use]
pub fn join(a: Unconnected, b: Unconnected) -> (Side, Side) {
    if !a.context.capabilities().manual_connect {
        let listener = cm::listen(&b.context);
        let address = listener.local_addr();
        return std::thread::scope(|scope| {
            let b = scope.spawn(|| b.accept(&listener));
            (a.call(address), b.join().expect("the passive end"))
        });
    }
    introduce(a, b)
}

/// Connects two sides of this process by an exchange of endpoints.
fn introduce<T: Connected>(a: Unconnected<T>, b: Unconnected<T>) -> (Side<T>, Side<T>) {
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    (a.connect(&to_b), b.connect(&to_a))
}

/// Reason for skipping a test that exchanges endpoints, on iWARP.
pub const MANAGED: &str = "iWARP connects by the connection manager only";
/// Reason for skipping a test of a peer's refusals, on iWARP.
pub const LOCAL: &str = "iWARP completes a request when it is sent; what the peer refuses ends the connection";

/// Whether the device is iWARP: for faults of the kernel's siw, and for rules of iWARP that
/// `Capabilities` does not name.
#[must_use]
pub fn is_iwarp(context: &Context) -> bool {
    context.device().transport() == TransportType::IWARP
}

/// Whether the device is iWARP; if so, reports the test as skipped with this reason.
#[must_use]
pub fn skipped_on_iwarp(context: &Context, reason: &str) -> bool {
    let skipped = is_iwarp(context);
    if skipped {
        skip(reason);
    }
    skipped
}

/// Two connected sides in this process.
#[must_use]
pub fn pair(options: Options) -> (Side, Side) {
    join(Unconnected::new(&open(), options), Unconnected::new(&open_peer(), options))
}

/// Two sides of an unreliable connection in this process; `None`, and the test is reported as
/// skipped, if the device has no such connections.
#[must_use]
pub fn unreliable_pair(options: Options) -> Option<(Side<Uc>, Side<Uc>)> {
    let (ours, theirs) = (open(), open_peer());
    if !ours.context.capabilities().unreliable_connections {
        skip("iWARP has no unreliable connections");
        return None;
    }
    Some(introduce(Unconnected::unreliable(&ours, options), Unconnected::unreliable(&theirs, options)))
}

/// The contents of a completion, independent of its poller.
#[derive(Debug)]
pub struct Done {
    /// The status of the request.
    pub status: Result<(), WcError>,
    /// The request's token.
    pub token: u64,
    /// Number of bytes received.
    pub byte_len: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The operation.
    pub opcode: Opcode,
    /// The buffers of the request, in order.
    pub buffers: Vec<Buffer>,
    /// The exposed slices of the request, in order.
    pub exposed: Vec<ExposedSlice>,
    /// The old value that an atomic operation returned.
    pub old_value: Option<u64>,
    /// Tokens of the unsignaled requests that the completion released.
    pub unsignaled: Vec<u64>,
}

impl Done {
    /// The only buffer of the completion.
    ///
    /// # Panics
    ///
    /// If there is not exactly one buffer.
    #[must_use]
    pub fn buffer(mut self) -> Buffer {
        assert_eq!(self.buffers.len(), 1, "one buffer was posted");
        self.buffers.remove(0)
    }
}

/// The next completion, if the queue has one.
///
/// # Panics
///
/// If polling fails.
pub fn poll(poller: &mut Poller) -> Option<Done> {
    let mut completion = poller.poll().expect("poll")?;
    let status = completion.status();
    let mut done = Done {
        token: completion.token(),
        byte_len: if status.is_ok() { completion.byte_len() } else { 0 },
        imm: if status.is_ok() { completion.imm() } else { None },
        opcode: completion.opcode(),
        old_value: if status.is_ok() { completion.old_value() } else { None },
        status,
        buffers: Vec::new(),
        exposed: Vec::new(),
        unsignaled: Vec::new(),
    };
    while let Some(buffer) = completion.take_buffer() {
        done.buffers.push(buffer);
    }
    while let Some(slice) = completion.take_exposed() {
        done.exposed.push(slice);
    }
    while let Some(released) = completion.next_unsignaled() {
        done.unsignaled.push(released.token());
    }
    Some(done)
}

/// Waits for the next completion.
///
/// # Panics
///
/// If none comes within [`LIMIT`]; the panic says how long it waited.
#[track_caller]
pub fn wait(poller: &mut Poller) -> Done {
    wait_patiently(poller, LIMIT)
}

/// Waits for the next completion of long work.
///
/// # Panics
///
/// If none comes within the limit; the panic says how long it waited.
#[track_caller]
pub fn wait_patiently(poller: &mut Poller, limit: Duration) -> Done {
    let begin = Instant::now();
    let Some(done) = wait_within(poller, limit) else { report::timed_out("completion", begin.elapsed()) };
    done
}

/// Waits for the next completion for at most `limit`.
pub fn wait_within(poller: &mut Poller, limit: Duration) -> Option<Done> {
    let end = Instant::now() + limit;
    loop {
        if let Some(done) = poll(poller) {
            return Some(done);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::yield_now();
    }
}

/// Reads from the peer. When the read returns, all earlier requests have taken effect at the peer.
///
/// # Panics
///
/// If the read fails.
#[must_use]
pub fn read(side: &mut Side, remote: RemoteSlice) -> Vec<u8> {
    let len = usize::try_from(remote.len()).expect("a length");
    if !side.context.capabilities().read_needs_exposed_sink {
        side.qp.post_send(op::read(side.pd.allocate(len).expect("a buffer"), remote)).expect("post");
        let done = wait(&mut side.sends);
        assert_eq!((done.status, done.opcode), (Ok(()), Opcode::Read));
        return done.buffer().to_vec();
    }
    // On iWARP the read response writes to the sink, which must be open to remote writes.
    let sink = side.pd.allocate_exposed(len, RemoteAccess::WRITE).expect("a region");
    side.qp.post_send(op::read(sink.slice(..).expect("a slice"), remote)).expect("post");
    assert_eq!(wait(&mut side.sends).status, Ok(()));
    let mut bytes = vec![0; len];
    sink.copy_out(0, &mut bytes).expect("within the region");
    bytes
}

/// Allocates a buffer with this content.
///
/// # Panics
///
/// If the allocation fails.
#[must_use]
pub fn buffer(pd: &ProtectionDomain, content: &[u8]) -> Buffer {
    let mut buffer = pd.allocate(content.len().max(1)).expect("a buffer");
    buffer.truncate(content.len());
    buffer.copy_from_slice(content);
    buffer
}

/// Pseudo-random bytes that depend on `seed`.
#[must_use]
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed).wrapping_mul(0x9e37_79b9) | 1;
    let mut bytes = Vec::with_capacity(len);
    for _ in 0..len {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.push(state.to_le_bytes()[0]);
    }
    bytes
}

/// Compiles and runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
