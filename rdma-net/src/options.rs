//! Options of nodes and listeners.

use std::time::Duration;

use rdma::aio::Strategy;
use rdma::{Error, ErrorKind, InitOptions, OptionLimit, PathOptions, Result, TransportType, Verb};

use super::link::MAX_READS;
use super::protocol::{ANSWERS, Agreed, HEADER_LEN, Hello, RESERVE, receive_size};
use super::receives::INITIAL;

/// Longer times are this long: 100 years.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Default length above which messages are read, in bytes, where the window does not say less.
const EAGER_LIMIT: usize = 64 << 10;

/// One-sided operations in flight: by default, and at most.
const OPERATIONS: u16 = 16;
const MAX_OPERATIONS: u16 = 4096;
static OPERATIONS_LIMIT: OptionLimit = OptionLimit::new("operations", "1 to 4096");

/// The retries for lack of a receive, which never lacks: 7 would retry for ever, and hide a peer
/// that breaks the protocol.
const MAX_RNR_RETRIES: u8 = 6;
static RNR_RETRY_COUNT: OptionLimit = OptionLimit::new("rnr_retry_count", "0 to 6 on connections of a node");

/// Most data messages in flight on a connection that shares receives.
const SHARING_SENDS: u32 = 4;

/// The way in which the connections of a node are set up. Both sides must use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Exchange {
    /// The connection manager, on every transport.
    #[default]
    ConnectionManager,
    /// An exchange of endpoints over TCP, for a device without a connection manager, and for
    /// InfiniBand without IPoIB. Addresses are those of any network of the hosts. The TCP
    /// connection stays open, and its end tells each side that the peer's process is gone. Not on
    /// iWARP.
    Tcp,
}

/// Options of a [`Node`](super::Node).
///
/// A connection takes `2 * window + 4` receive buffers and `window + 5` send buffers of
/// `payload` bytes and a header. Once longer messages than the eager limit go, it takes up to twice
/// the longest message at the sender, and as much at the receiver. The connections of a node share
/// what no message occupies there, unless they have [domains of their
/// own](Self::separate_domains).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma_net::NodeOptions;
///
/// let options = NodeOptions::new().window(8).max_connections(1000).keep_alive(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct NodeOptions {
    pub(super) window: u16,
    pub(super) payload: u32,
    pub(super) max_message: u64,
    pub(super) eager_limit: Option<u32>,
    pub(super) keep_alive: Duration,
    operations: u16,
    pub(super) notifications: u32,
    pub(super) max_connections: u32,
    pub(super) timeout: Duration,
    pub(super) linger: Duration,
    path: PathOptions,
    pub(super) completion_vector: u32,
    pub(super) strategy: Strategy,
    pub(super) exchange: Exchange,
    pub(super) separate_domains: bool,
    pub(super) init_options: InitOptions,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            window: 16,
            payload: 4096,
            max_message: 1 << 20,
            eager_limit: None,
            keep_alive: Duration::from_secs(15),
            operations: OPERATIONS,
            notifications: 0,
            max_connections: 256,
            timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            path: PathOptions::new(),
            completion_vector: 0,
            strategy: Strategy::default(),
            exchange: Exchange::default(),
            separate_domains: false,
            init_options: InitOptions::new(),
        }
    }
}

impl NodeOptions {
    /// Default options: a window of 16 messages of 4 KiB, longer messages up to 1 MiB, 256
    /// connections, a keep-alive after 15 s.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// How many fragments the peer may send before this side answers: 1 to 4096. Both sides
        /// take the smaller value.
        window(count: u16) = count;
        /// Payload of a fragment in bytes: 240 to 1,048,560. Both sides take the smaller value.
        payload(len: u32) = len;
        /// Longest message that this side accepts, in bytes, up to `u32::MAX`. Both sides take the
        /// smaller value.
        max_message(len: u32) = len.into();
        /// Longest message, or write of a stream, that this side sends in fragments, in bytes. The
        /// peer's device reads longer ones from this side's memory, which saves two copies and
        /// costs a round trip. By default half of the window, and at most 64 KiB; `u32::MAX` sends
        /// all in fragments. On iWARP, and to a peer that cannot read, all messages go in
        /// fragments.
        eager_limit(len: u32) = Some(len);
        /// Idle time after which the peer must answer; zero for never.
        keep_alive(time: Duration) = time.min(LONGEST);
        /// One-sided operations ([`Remote`](super::Remote)) of each connection that may be in
        /// flight: 1 to 4096, 16 by default. A [batch](super::Remote::batch) has at most as many.
        /// Each takes a slot of the send queue, of which a device has a limit, and the connection
        /// keeps a buffer for as many reads.
        operations(count: u16) = count;
        /// Notifications of the peer ([`Remote::write_imm`](super::Remote::write_imm)) that may
        /// wait for the program, for each connection; by default 0, and the peer can send none.
        /// Equal ones that follow each other count as one.
        ///
        /// When as many wait, the connection posts no receives, so that the peer has to wait, with
        /// its messages too. A device on iWARP takes none.
        notifications(count: u32) = count;
        /// Most connections of the node. Its completion queue has space for them, or for as many as
        /// the device's largest holds: one more connection fails, or is refused. Each of
        /// [several drivers](super::Node::with_drivers) has space for its share of them.
        max_connections(count: u32) = count;
        /// Time for each step of connecting and accepting, and for
        /// [`Connection::close`](super::Connection::close).
        timeout(time: Duration) = time.min(LONGEST);
        /// Time for a dropped connection to send its last messages.
        linger(time: Duration) = time.min(LONGEST);
        /// The path of the node's connections, both those that it makes and those that its
        /// listeners accept: traffic class, service level, timeouts and retries. On a lossless
        /// network the traffic class decides whether packets are lost:
        /// [`priorities`](rdma::guide::priorities).
        ///
        /// `rnr_retry_count` is 0 to 6 here, and 6 by default. The protocol never lets a message
        /// come without a receive, so 0 finds errors.
        path(path: PathOptions) = path;
        /// The [completion vector](rdma::CqBuilder::completion_vector) that wakes the driver: 0 by
        /// default. Nodes whose drivers run on different cores take different vectors. Of [several
        /// drivers](super::Node::with_drivers), the others have the vectors after this one.
        completion_vector(vector: u32) = vector;
        /// When the driver sleeps: by default after 20 turns without a completion.
        /// [`BusyPoll`](Strategy::BusyPoll) has the lowest latency, and keeps a core busy.
        strategy(strategy: Strategy) = strategy;
        /// The way in which connections are set up: by default by the connection manager.
        exchange(exchange: Exchange) = exchange;
        /// Gives each connection a protection domain of its own
        /// ([`Connection::domain`](super::Connection::domain)), so that no peer reaches with a key,
        /// given or guessed, what was exposed to another one. A connection then keeps the buffers
        /// for long messages for itself, and no listener can share receives.
        separate_domains(are_separate: bool) = are_separate;
        /// Port, GID index and P_Key of queue pairs that an exchange over TCP connects. The
        /// connection manager takes them from the addresses.
        init_options(options: InitOptions) = options;
    }

    /// Refuses values out of range, and options that a transport cannot be told.
    pub(super) fn check(&self, transport: TransportType) -> Result<()> {
        let invalid = |kind| Error::new(Verb::CreateQp, kind);
        if let Err(reason) = self.hello(false, false, false).check() {
            tracing::debug!(name: "options_refused", target: "rdma_net", reason, "options of a node are out of range");
            return Err(invalid(ErrorKind::InvalidInput));
        }
        if !(1..=MAX_OPERATIONS).contains(&self.operations) {
            return Err(invalid(ErrorKind::InvalidOption(&OPERATIONS_LIMIT)));
        }
        self.path.check_for(transport).map_err(|limit| invalid(ErrorKind::InvalidOption(limit)))?;
        if self.path.rnr_retry_count.is_some_and(|count| count > MAX_RNR_RETRIES) {
            return Err(invalid(ErrorKind::InvalidOption(&RNR_RETRY_COUNT)));
        }
        Ok(())
    }

    /// The options of the path, with the default of a node.
    pub(super) fn path_options(&self) -> PathOptions {
        self.path.or(PathOptions::new().rnr_retry_count(MAX_RNR_RETRIES))
    }

    /// Length of a buffer for a fragment, in bytes.
    pub(super) fn buffer_size(&self) -> usize {
        (self.payload as usize + HEADER_LEN).next_multiple_of(64)
    }

    /// The HELLO of a side that reads offers, or does not, whose device has immediate data, or has
    /// none, and that shares receives, or does not.
    pub(super) fn hello(&self, reads_offers: bool, has_immediates: bool, shares: bool) -> Hello {
        Hello {
            window: self.window,
            initial: if shares { INITIAL.min(u8::try_from(self.window).unwrap_or(INITIAL)) } else { 0 },
            receive_size: receive_size(self.payload),
            max_message: self.max_message,
            keep_alive: self.keep_alive,
            reads_offers,
            takes_notifications: has_immediates && self.notifications > 0,
        }
    }

    /// Longest message that goes in fragments on a connection, in bytes.
    pub(super) fn longest_eager(&self, agreed: &Agreed) -> usize {
        let max_payload = agreed.max_payload();
        let half_window = agreed.window as usize / 2 * max_payload;
        match self.eager_limit {
            _ if !agreed.offers => usize::MAX,
            Some(u32::MAX) => usize::MAX,
            Some(limit) => max_payload.max(limit as usize),
            None => max_payload.max(half_window.min(EAGER_LIMIT)),
        }
    }

    /// Entries of the completion queue of each driver, on a device whose queues have at most this
    /// many.
    pub(super) fn completions(&self, drivers: u32, most: u32) -> u32 {
        self.max_connections.div_ceil(drivers).saturating_mul(self.receives() + self.send_slots(false)).min(most)
    }

    /// Receives of a connection.
    pub(super) fn receives(&self) -> u32 {
        u32::from(self.window) + RESERVE
    }

    /// Slots of a connection's send queue for messages: fewer if the connection shares receives.
    pub(super) fn slots(&self, shares: bool) -> u32 {
        let most = if shares { SHARING_SENDS } else { u32::MAX };
        u32::from(self.window).min(most) + RESERVE + ANSWERS
    }

    /// All slots of a connection's send queue: those for messages, operations and reads, and one
    /// for the last send.
    pub(super) fn send_slots(&self, shares: bool) -> u32 {
        self.slots(shares) + self.max_operations() + MAX_READS + 1
    }

    /// One-sided operations of a connection that may be in flight.
    pub(super) fn max_operations(&self) -> u32 {
        self.operations.into()
    }
}

/// Options of a [`Listener`](super::Listener).
#[derive(Debug, Clone)]
#[must_use]
pub struct ListenOptions {
    pub(super) backlog: usize,
    pub(super) max_connections: usize,
    pub(super) first_message: Option<Duration>,
    pub(super) idle: Option<Duration>,
    pub(super) shared_receives: Option<u32>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, max_connections: usize::MAX, first_message: None, idle: None, shared_receives: None }
    }
}

impl ListenOptions {
    /// Default options: 128 requests may wait to be accepted, the node limits the connections, and
    /// a peer may stay silent.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// How many requests may wait to be accepted. The listener refuses others as busy. As many
        /// peers may be connected by TCP without a request; the oldest is cut off for another.
        backlog(count: usize) = count;
        /// How many connections of the listener may exist. The listener refuses others as busy.
        max_connections(count: usize) = count;
        /// Time in which a new peer must send its first message, to the last fragment of it.
        first_message(time: Duration) = Some(time.min(LONGEST));
        /// Time in which a peer must send its next message, or the next fragment of a long one,
        /// until it ends its data: the connection then fails with `Timeout`. Before the first
        /// message is whole, [`first_message`](Self::first_message) is the limit, if there is one.
        /// A peer that waits for an answer, or whose program uses only one-sided operations, is
        /// idle too. The [keep-alive](NodeOptions::keep_alive) does not count: it finds peers that
        /// are gone, and this limit those that are there and silent.
        idle(time: Duration) = Some(time.min(LONGEST));
        /// Lets all connections of the listener take their receives from one shared queue of
        /// `count` receives, for many connections of which few are busy at a time.
        ///
        /// A connection begins with 6 receives; the listener refuses others as busy once fewer are
        /// free. It gets more, up to the window of the node, while its peer uses all that it has,
        /// up to an equal share of the queue. When connections come and few receives are free, it
        /// gives back what is above its share as its peer sends. A message that the application
        /// holds occupies one of its connection's receives, so a program should not hold messages
        /// for long. Such a connection has 8 send buffers at most. With the default payload an idle
        /// connection takes 57 KiB instead of 228 KiB.
        ///
        /// No honest peer finds the queue empty. The messages of a peer that ignores its credits
        /// may fill it until that connection has failed: others then repeat theirs
        /// ([`rnr_retry_count`](PathOptions::rnr_retry_count)), but on iWARP, which cannot repeat,
        /// their connections break. Use it there only among peers that you trust.
        shared_receives(count: u32) = Some(count);
    }
}
