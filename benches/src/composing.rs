//! Ways to use connections of `rdma_net`, between two processes: reads one at a time and under one
//! doorbell, messages by the methods and by `Stream` and `Sink`.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use rdma::aio::Strategy;
use rdma::aio::tokio::Readable;
use rdma::{Context, ExposedRegion, RemoteAccess, RemoteSlice};
use rdma_net::{Connection, ListenOptions, Node, NodeOptions, Receiver, Sender};
use tokio::runtime::{Builder, Runtime};

use crate::pair::{Channel, Contender, Role};

/// Reads of an iteration.
pub const READS: u16 = 64;
/// Bytes of a read.
const READ: usize = 64;

/// How reads are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Each after the result of the one before.
    OneByOne,
    /// All by [`Remote::fetch_all`](rdma_net::Remote::fetch_all).
    All,
    /// All as a [`Batch`](rdma_net::Batch).
    Batch,
}

impl Reading {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::OneByOne, Self::All, Self::Batch];

    fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one at a time",
            Self::All => "`fetch_all`",
            Self::Batch => "a `Batch`",
        }
    }
}

/// How messages are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messaging {
    /// By `Sender::send` and `Receiver::next`.
    Methods,
    /// By `Sink` and `Stream`, flushed at the end.
    Feed,
    /// By `Sink` and `Stream`, each message flushed.
    Send,
}

impl Messaging {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Methods, Self::Feed, Self::Send];

    fn name(self) -> &'static str {
        match self {
            Self::Methods => "`send` and `next`",
            Self::Feed => "`Stream` and `Sink`, `feed`",
            Self::Send => "`Stream` and `Sink`, `send`",
        }
    }
}

/// One side of a connection, on a runtime of its own that never sleeps.
struct Side {
    runtime: Runtime,
    node: Node,
    to: Sender,
    from: Receiver,
}

impl Side {
    fn connect(role: Role, channel: &mut Channel, context: &Context) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // Other contenders run between the turns of this one, for longer than a keep-alive lasts.
        let options = NodeOptions::new().operations(READS).keep_alive(Duration::ZERO).strategy(Strategy::BusyPoll);
        let (node, connection) = runtime.block_on(async {
            let (node, driver) = Node::new(context, &options)?;
            let readable = Readable::new(&driver)?;
            drop(tokio::spawn(driver.run(readable)));
            let connection: Connection = match role {
                Role::Leader => {
                    let mut listener = node.listen((Ipv4Addr::LOCALHOST, 0).into(), &ListenOptions::new())?;
                    channel.send(&listener.local_addr().to_string())?;
                    listener.accept().await?.accept().await?
                }
                Role::Follower => node.connect(channel.receive()?.parse().map_err(io::Error::other)?).await?,
            };
            Ok::<_, io::Error>((node, connection))
        })?;
        let (to, from) = connection.split();
        Ok(Self { runtime, node, to, from })
    }

    /// Exposes memory, and tells the peer its slice; or hears of the peer's.
    fn expose(&mut self, role: Role) -> io::Result<(Option<ExposedRegion>, RemoteSlice)> {
        let Self { runtime, node, to, from } = self;
        runtime.block_on(async {
            if role == Role::Leader {
                let message = from.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                return Ok((None, RemoteSlice::from_bytes(&message).map_err(io::Error::other)?));
            }
            let len = READ * usize::from(READS);
            let region = node.domain().allocate_exposed(len, RemoteAccess::READ).map_err(io::Error::other)?;
            let slice = region.remote(..).map_err(io::Error::other)?;
            to.send(slice.to_bytes()).await?;
            Ok((Some(region), slice))
        })
    }
}

/// The leader reads the follower's memory, whose program does nothing.
struct Reads {
    reading: Reading,
    side: Side,
    slices: Vec<RemoteSlice>,
    _region: Option<ExposedRegion>,
}

/// Connects the two sides of reads of the follower's memory. An iteration is [`READS`] reads.
///
/// # Errors
///
/// The error of a connection, the runtime or the channel.
pub fn reads(role: Role, channel: &mut Channel, context: &Context, reading: Reading) -> io::Result<Box<dyn Contender>> {
    let mut side = Side::connect(role, channel, context)?;
    let (region, all) = side.expose(role)?;
    let slices = (0..usize::from(READS)).map(|at| all.slice(READ * at..READ * (at + 1)));
    let slices = slices.collect::<Result<_, _>>().map_err(io::Error::other)?;
    Ok(Box::new(Reads { reading, side, slices, _region: region }))
}

impl Contender for Reads {
    fn name(&self) -> String {
        self.reading.name().to_owned()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let Self { reading, side: Side { runtime, to, .. }, slices, .. } = self;
        let remote = to.remote();
        runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..iterations {
                match reading {
                    Reading::OneByOne => {
                        for slice in &*slices {
                            drop(remote.fetch(*slice).await?);
                        }
                    }
                    Reading::All => drop(remote.fetch_all(slices.iter().copied()).await?),
                    Reading::Batch => {
                        let mut batch = remote.batch();
                        for slice in &*slices {
                            batch.fetch(*slice)?;
                        }
                        drop(batch.submit().await?);
                    }
                }
            }
            Ok(start.elapsed())
        })
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads").field("reading", &self.reading).finish_non_exhaustive()
    }
}

/// Messages from the leader to the follower, which answers the last one.
struct Messages {
    messaging: Messaging,
    side: Side,
    message: Vec<u8>,
}

/// Connects the two sides of messages of `len` bytes. An iteration is one message.
///
/// # Errors
///
/// The error of a connection, the runtime or the channel.
pub fn messages(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    messaging: Messaging,
    len: usize,
) -> io::Result<Box<dyn Contender>> {
    let side = Side::connect(role, channel, context)?;
    Ok(Box::new(Messages { messaging, side, message: vec![0x5a; len] }))
}

impl Contender for Messages {
    fn name(&self) -> String {
        self.messaging.name().to_owned()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let Self { messaging, side: Side { runtime, to, from, .. }, message } = self;
        let message = &message[..];
        runtime.block_on(async {
            let start = Instant::now();
            match messaging {
                Messaging::Methods => {
                    for _ in 0..iterations {
                        Sender::send(to, message).await?;
                    }
                }
                Messaging::Feed => {
                    for _ in 0..iterations {
                        to.feed(message).await?;
                    }
                    SinkExt::<&[u8]>::flush(to).await?;
                }
                Messaging::Send => {
                    for _ in 0..iterations {
                        SinkExt::send(to, message).await?;
                    }
                }
            }
            receive(*messaging, from, 1).await?;
            Ok(start.elapsed())
        })
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let Self { messaging, side: Side { runtime, to, from, .. }, .. } = self;
        runtime.block_on(async {
            receive(*messaging, from, iterations).await?;
            Ok(Sender::send(to, [0]).await?)
        })
    }
}

/// Receives messages.
async fn receive(messaging: Messaging, from: &mut Receiver, count: u64) -> io::Result<()> {
    for _ in 0..count {
        let message = match messaging {
            Messaging::Methods => Receiver::next(from).await?,
            Messaging::Feed | Messaging::Send => StreamExt::next(from).await.transpose()?,
        };
        drop(message.ok_or(io::ErrorKind::UnexpectedEof)?);
    }
    Ok(())
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("messaging", &self.messaging).finish_non_exhaustive()
    }
}
