//! Echo services in two processes, each on a tokio runtime of one thread: over the messages and the
//! byte streams of `rdma_net`, TCP on loopback and Unix sockets.

mod net;
mod sockets;

use std::fmt;
use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use rdma::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::pair::{Channel, Contender, Role};

/// A transport of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Messages of `rdma_net`.
    Messages,
    /// Messages of `rdma_net` out of memory that the sender exposes.
    Exposed,
    /// A byte stream of `rdma_net`.
    Stream,
    /// TCP on loopback.
    Tcp,
    /// A Unix stream socket.
    Unix,
}

impl Transport {
    /// The transports of a case, in the order of its table. Small messages are not worth an offer.
    #[must_use]
    pub fn of(case: Case) -> Vec<Self> {
        let mut all = vec![Self::Messages, Self::Exposed, Self::Stream, Self::Tcp, Self::Unix];
        all.retain(|one| case.size > SMALL_OFFER || *one != Self::Exposed);
        all
    }

    /// Whether it is a transport of `rdma_net`.
    #[must_use]
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Tcp | Self::Unix)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Messages => "rdma_net messages",
            Self::Exposed => "rdma_net exposed memory",
            Self::Stream => "rdma_net stream",
            Self::Tcp => "tokio TCP",
            Self::Unix => "tokio Unix socket",
        }
    }
}

/// Bytes up to which no memory is offered.
const SMALL_OFFER: usize = 4096;

/// Time that both sides have to fall asleep before each request.
const PAUSE: Duration = Duration::from_millis(1);

/// Length of the message that ends a block.
const END: usize = 1;

/// The conditions under which the transports are compared.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Bytes in a request, and in its answer.
    pub size: usize,
    /// Connections, each with one request in flight.
    pub connections: u32,
    /// Whether the processes poll or sleep.
    pub waiting: Waiting,
}

/// How the two processes wait for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// They never sleep.
    Busy,
    /// A request begins after a pause in which both processes fell asleep.
    Asleep,
    /// Requests follow each other; a process sleeps when it has nothing to do for a moment, as it
    /// does by default.
    Default,
}

/// One side of a connection.
pub trait Wire: Send + Sized + 'static {
    /// Sends a message of `len` bytes, or begins to.
    fn send(&mut self, len: usize) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits for a message of `len` bytes.
    fn receive(&mut self, len: usize) -> impl Future<Output = io::Result<()>> + Send;
}

/// Connects the two sides of an echo service over a transport.
///
/// # Errors
///
/// The error of the transport, the runtime or the channel.
pub fn connect(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    case: Case,
    transport: Transport,
) -> io::Result<Box<dyn Contender>> {
    let name = transport.name();
    match transport {
        Transport::Messages => {
            Echo::boxed(name, case, false, net::connect(role, channel, context, case, net::messages))
        }
        Transport::Exposed => Echo::boxed(name, case, false, net::connect(role, channel, context, case, net::exposed)),
        Transport::Stream => Echo::boxed(name, case, false, net::connect(role, channel, context, case, net::stream)),
        Transport::Tcp => Echo::boxed(name, case, true, sockets::tcp(role, channel, case)),
        Transport::Unix => Echo::boxed(name, case, true, sockets::unix(role, channel, case)),
    }
}

/// An echo service over some connections. An iteration is an echo on each of them.
struct Echo<W> {
    name: &'static str,
    case: Case,
    runtime: Runtime,
    connections: Vec<W>,
}

impl<W: Wire> Echo<W> {
    /// Makes the connections of `connect`. With `spins`, a task keeps the runtime from sleeping if
    /// the case is busy.
    fn boxed(
        name: &'static str,
        case: Case,
        spins: bool,
        connect: impl Future<Output = io::Result<Vec<W>>>,
    ) -> io::Result<Box<dyn Contender>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connections = runtime.block_on(connect)?;
        if spins && case.waiting == Waiting::Busy {
            drop(runtime.spawn(spin()));
        }
        Ok(Box::new(Self { name, case, runtime, connections }))
    }

    /// Does `work` on every connection at the same time; returns the longest of their times.
    fn on_all<F>(&mut self, work: impl Fn(W) -> F) -> io::Result<Duration>
    where
        F: Future<Output = io::Result<(W, Duration)>> + Send + 'static,
    {
        let Self { runtime, connections, .. } = self;
        runtime.block_on(async {
            let mut tasks: JoinSet<_> = connections.drain(..).map(work).collect();
            let mut longest = Duration::ZERO;
            while let Some(done) = tasks.join_next().await {
                let (connection, took) = done.map_err(io::Error::other)??;
                connections.push(connection);
                longest = longest.max(took);
            }
            Ok(longest)
        })
    }
}

impl<W: Wire> Contender for Echo<W> {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let Case { size, waiting, .. } = self.case;
        self.on_all(|mut wire| async move {
            let took = match waiting {
                Waiting::Asleep => request_after_pauses(&mut wire, size, iterations).await?,
                Waiting::Busy | Waiting::Default => request(&mut wire, size, iterations).await?,
            };
            wire.send(END).await?;
            Ok((wire, took))
        })
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let size = self.case.size;
        self.on_all(|mut wire| async move {
            answer(&mut wire, size, iterations).await?;
            Ok((wire, Duration::ZERO))
        })?;
        Ok(())
    }
}

impl<W> fmt::Debug for Echo<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Echo").field("name", &self.name).field("case", &self.case).finish_non_exhaustive()
    }
}

/// Sends requests, each after the answer of the one before; returns the time that all took.
async fn request<W: Wire>(wire: &mut W, len: usize, count: u64) -> io::Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        wire.send(len).await?;
        wire.receive(len).await?;
    }
    Ok(start.elapsed())
}

/// Sends requests with pauses between them; returns the time without the pauses.
async fn request_after_pauses<W: Wire>(wire: &mut W, len: usize, count: u64) -> io::Result<Duration> {
    let mut took = Duration::ZERO;
    for _ in 0..count {
        tokio::time::sleep(PAUSE).await;
        took += request(wire, len, 1).await?;
    }
    Ok(took)
}

/// Answers requests. The last answer may still be on its way when it has begun, and moves on only
/// while this process works: the other side says when it has come.
async fn answer<W: Wire>(wire: &mut W, len: usize, count: u64) -> io::Result<()> {
    for _ in 0..count {
        wire.receive(len).await?;
        wire.send(len).await?;
    }
    wire.receive(END).await
}

/// Keeps a runtime from sleeping: it looks for events of its descriptors between any two turns.
async fn spin() {
    loop {
        tokio::task::yield_now().await;
    }
}
