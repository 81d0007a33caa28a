//! Helpers for device tests: the device under test, connected pairs of queue pairs, waits with a
//! limit. The tests run on the device that `RDMA_TEST_DEVICE` names (`rxe0`, `mlx5_0:1`), and
//! without it on the software device. A device that was promised and is missing is a failure, never
//! a skip. A test of a feature that the device lacks is skipped by [`skip`], with the reason.

pub mod cm;
pub mod datagram;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{Connection, Listener};
use rdma::op::{Opcode, Read};
use rdma::{
    Buffer, CompletionQueue, ConnectOptions, Context, DeviceSelector, Endpoint, ExposedSlice, InitOptions, Opened,
    Poller, ProtectionDomain, QueuePair, Rc, RemoteAccess, RemoteSlice, TransportType, WcError,
};
use rdma_test_support::{Channel, role};

pub use rdma_test_support::skip;

/// Names the device under test.
pub const VARIABLE: &str = "RDMA_TEST_DEVICE";
/// Names the device of the second end of a connection, and of a second process; by default the
/// device under test.
pub const PEER_VARIABLE: &str = "RDMA_TEST_PEER_DEVICE";

/// How long a test waits for anything. Generous: machines are slow and shared.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Opens the device under test.
///
/// # Panics
///
/// If the device is not there: a test that was promised a device fails without it.
#[must_use]
pub fn open() -> Opened {
    open_end(role().is_some())
}

/// Opens the device of the other end.
///
/// # Panics
///
/// If the device is not there.
#[must_use]
pub fn open_peer() -> Opened {
    open_end(true)
}

fn open_end(second: bool) -> Opened {
    let peer = if second { std::env::var(PEER_VARIABLE).ok() } else { None };
    let name = peer.or_else(|| std::env::var(VARIABLE).ok()).unwrap_or_else(|| "soft0".into());
    let selector: DeviceSelector = name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
    rdma::open(&selector).unwrap_or_else(|error| panic!("the device to test on: {error}"))
}

/// All rights that a peer can have.
#[must_use]
pub fn all_rights() -> RemoteAccess {
    RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC
}

/// The settings of a test's queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Slots of each queue.
    pub depth: u32,
    /// Segments of a request.
    pub sges: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// How to connect.
    pub connect: ConnectOptions,
    /// The peer's rights.
    pub access: RemoteAccess,
}

impl Default for Options {
    fn default() -> Self {
        Self { depth: 16, sges: 4, inline: 64, connect: ConnectOptions::new(), access: all_rights() }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Side {
    /// The open device.
    pub context: Context,
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// The queue pair.
    pub qp: QueuePair<Rc>,
    /// Completions of sends.
    pub sends: Poller,
    /// Completions of receives.
    pub receives: Poller,
    /// The connection manager's part of the connection, on iWARP.
    pub connection: Option<Connection>,
}

/// An end that is not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    /// The open device.
    pub context: Context,
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// The queue pair, which takes receives.
    pub qp: rdma::InitializedQueuePair<Rc>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    options: Options,
}

impl Unconnected {
    /// Makes a queue pair, up to INIT.
    ///
    /// # Panics
    ///
    /// If the device cannot.
    #[must_use]
    pub fn new(opened: &Opened, options: Options) -> Self {
        let context = opened.context.clone();
        let pd = context.alloc_pd().expect("a protection domain");
        let send_cq = context.create_cq(options.depth).expect("a completion queue");
        let recv_cq = context.create_cq(options.depth).expect("a completion queue");
        let qp = QueuePair::builder(&pd)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(options.depth)
            .max_recv_wr(options.depth)
            .max_send_sge(options.sges)
            .max_recv_sge(options.sges)
            .max_inline_data(options.inline)
            .build()
            .expect("a queue pair");
        let qp = if is_iwarp(&context) {
            cm::init_unconnected(qp, &context, options.access)
        } else {
            qp.init(&InitOptions::new().port(opened.port).remote_access(options.access)).expect("INIT")
        };
        Self { context, pd, qp, send_cq, recv_cq, options }
    }

    /// Brings the queue pair up to RTS, on devices whose queue pairs connect by an exchange of
    /// endpoints.
    ///
    /// # Panics
    ///
    /// If the device cannot.
    #[must_use]
    pub fn connect(self, peer: &Endpoint) -> Side {
        let qp = self.qp.connect(peer, &self.options.connect).expect("RTS");
        Side {
            context: self.context,
            pd: self.pd,
            qp,
            sends: self.send_cq.poller(),
            receives: self.recv_cq.poller(),
            connection: None,
        }
    }

    /// Connects to an end in another process, which calls this too: by an exchange over the
    /// channel, or on iWARP by the connection manager.
    ///
    /// # Panics
    ///
    /// If that fails.
    #[must_use]
    pub fn meet(self, channel: &mut Channel) -> Side {
        if !is_iwarp(&self.context) {
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
        // siw may leave an earlier message unread.
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

    fn managed(self, connect: impl FnOnce(rdma::InitializedQueuePair<Rc>) -> (Connection, QueuePair<Rc>)) -> Side {
        let (connection, qp) = connect(self.qp);
        Side {
            context: self.context,
            pd: self.pd,
            qp,
            sends: self.send_cq.poller(),
            receives: self.recv_cq.poller(),
            connection: Some(connection),
        }
    }
}

/// Exchanges endpoints with another process.
///
/// # Panics
///
/// If the other process is gone, or sends something else.
pub fn exchange(channel: &mut Channel, ours: &Endpoint) -> Endpoint {
    channel.send(&ours.to_bytes());
    Endpoint::from_bytes(&channel.receive()).expect("an endpoint")
}

/// Receives a remote slice from another process.
pub fn receive_slice(channel: &mut Channel) -> RemoteSlice {
    RemoteSlice::from_bytes(&channel.receive_exact())
}

/// Connects two ends of this process.
///
/// # Panics
///
/// If that fails.
#[must_use]
pub fn join(a: Unconnected, b: Unconnected) -> (Side, Side) {
    if is_iwarp(&a.context) {
        let listener = cm::listen(&b.context);
        let address = listener.local_addr();
        return std::thread::scope(|scope| {
            let b = scope.spawn(|| b.accept(&listener));
            (a.call(address), b.join().expect("the passive end"))
        });
    }
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    (a.connect(&to_b), b.connect(&to_a))
}

/// Why iWARP skips tests that exchange endpoints.
pub const MANAGED: &str = "iWARP connects by the connection manager only";
/// Why iWARP skips tests of a peer's refusals.
pub const LOCAL: &str = "iWARP completes a request when it is sent; what the peer refuses ends the connection";

/// Whether the device speaks iWARP, which connects by the connection manager only, and has neither
/// immediate data nor a way to wait for a receive.
#[must_use]
pub fn is_iwarp(context: &Context) -> bool {
    context.device().transport() == TransportType::IWARP
}

/// Skips a test on iWARP, with this reason.
#[must_use]
pub fn skipped_on_iwarp(context: &Context, reason: &str) -> bool {
    let skipped = is_iwarp(context);
    if skipped {
        skip(reason);
    }
    skipped
}

/// Two connected ends in this process.
#[must_use]
pub fn pair(options: Options) -> (Side, Side) {
    join(Unconnected::new(&open(), options), Unconnected::new(&open_peer(), options))
}

/// A completion, taken out of its poller.
#[derive(Debug)]
pub struct Done {
    /// The status.
    pub status: Result<(), WcError>,
    /// The request's token.
    pub token: u64,
    /// Bytes received.
    pub byte_len: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The operation.
    pub opcode: Opcode,
    /// Its buffers, in order.
    pub buffers: Vec<Buffer>,
    /// Its slices of exposed regions, in order.
    pub exposed: Vec<ExposedSlice>,
    /// The old value of an atomic operation.
    pub old_value: Option<u64>,
    /// Tokens of the unsignaled requests that the completion released.
    pub unsignaled: Vec<u64>,
}

impl Done {
    /// The only buffer.
    ///
    /// # Panics
    ///
    /// If there is another number of buffers.
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
/// If none comes within [`LIMIT`].
pub fn wait(poller: &mut Poller) -> Done {
    wait_within(poller, LIMIT).expect("no completion in time")
}

/// Waits for the next completion for so long.
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

/// Reads from the peer. All earlier requests have taken effect there when this returns.
///
/// # Panics
///
/// If that fails.
#[must_use]
pub fn read(side: &mut Side, remote: RemoteSlice) -> Vec<u8> {
    let len = usize::try_from(remote.len()).expect("a length");
    if !is_iwarp(&side.context) {
        side.qp.post_send(Read::new(side.pd.allocate(len).expect("a buffer"), remote)).expect("post");
        let done = wait(&mut side.sends);
        assert_eq!((done.status, done.opcode), (Ok(()), Opcode::Read));
        return done.buffer().to_vec();
    }
    // On iWARP the peer answers by a write.
    let sink = side.pd.allocate_exposed(len, RemoteAccess::WRITE).expect("a region");
    side.qp.post_send(Read::new(sink.slice(..).expect("a slice"), remote)).expect("post");
    assert_eq!(wait(&mut side.sends).status, Ok(()));
    let mut bytes = vec![0; len];
    sink.copy_out(0, &mut bytes).expect("within the region");
    bytes
}

/// A buffer with this content.
///
/// # Panics
///
/// If there is no memory.
#[must_use]
pub fn buffer(pd: &ProtectionDomain, content: &[u8]) -> Buffer {
    let mut buffer = pd.allocate(content.len().max(1)).expect("a buffer");
    buffer.truncate(content.len());
    buffer.copy_from_slice(content);
    buffer
}

/// Bytes that are different everywhere.
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

/// The README's program compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
