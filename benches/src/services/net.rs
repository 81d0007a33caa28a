//! Messages and byte streams of `rdma_net`.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rdma::aio::Strategy;
use rdma::aio::tokio::Readable;
use rdma::{Context, ExposedRegion, RemoteAccess};
use rdma_net::{Connection, ListenOptions, Message, Node, NodeOptions, Receiver, Sender, Stream};

use super::sockets::ByteWire;
use super::{Case, Waiting, Wire};
use crate::mode;
use crate::pair::{Channel, Role};

/// A connection with messages.
pub(super) struct MessageWire {
    connection: Connection,
    message: Vec<u8>,
}

impl Wire for MessageWire {
    async fn send(&mut self, len: usize) -> io::Result<()> {
        Ok(self.connection.send(&self.message[..len]).await?)
    }

    async fn receive(&mut self, len: usize) -> io::Result<()> {
        expect(self.connection.next().await?, len)
    }
}

/// A connection with messages out of exposed memory.
pub(super) struct ExposedWire {
    to: Sender,
    from: Receiver,
    memory: ExposedRegion,
}

impl Wire for ExposedWire {
    async fn send(&mut self, len: usize) -> io::Result<()> {
        let slice = self.memory.slice(..len).map_err(io::Error::other)?;
        Ok(self.to.send_exposed(slice).await?)
    }

    async fn receive(&mut self, len: usize) -> io::Result<()> {
        expect(self.from.next().await?, len)
    }
}

fn expect(message: Option<Message>, len: usize) -> io::Result<()> {
    match message {
        Some(message) if message.len() == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A connection for messages of `case`.
pub(super) fn messages(_: &Node, connection: Connection, case: Case) -> io::Result<MessageWire> {
    Ok(MessageWire { connection, message: vec![0x5a; case.size] })
}

/// A connection for messages out of exposed memory, which it has of its own.
pub(super) fn exposed(node: &Node, connection: Connection, case: Case) -> io::Result<ExposedWire> {
    let memory = node.domain().allocate_exposed(case.size, RemoteAccess::READ).map_err(io::Error::other)?;
    memory.fill(0, case.size, 0x5a).map_err(io::Error::other)?;
    let (to, from) = connection.split();
    Ok(ExposedWire { to, from, memory })
}

/// A connection for bytes.
#[allow(clippy::unnecessary_wraps, reason = "as its siblings")]
pub(super) fn stream(_: &Node, connection: Connection, case: Case) -> io::Result<ByteWire<Stream>> {
    Ok(ByteWire::new(connection.into_stream(), case.size))
}

/// Connects, and makes a wire of each connection.
pub(super) async fn connect<W>(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    case: Case,
    wire: fn(&Node, Connection, Case) -> io::Result<W>,
) -> io::Result<Vec<W>> {
    let strategy = if case.waiting == Waiting::Busy { Strategy::BusyPoll } else { Strategy::default() };
    let (node, driver) = Node::new(context, &options(case, strategy)?)?;
    let readable = Readable::new(&driver)?;
    drop(tokio::spawn(driver.run(readable)));
    let mut connections = Vec::new();
    match role {
        Role::Leader => {
            let mut listener = node.listen((Ipv4Addr::LOCALHOST, 0).into(), &ListenOptions::new())?;
            channel.send(&listener.local_addr().to_string())?;
            for _ in 0..case.connections {
                connections.push(listener.accept().await?.accept().await?);
            }
        }
        Role::Follower => {
            let address = channel.receive()?.parse().map_err(io::Error::other)?;
            for _ in 0..case.connections {
                connections.push(node.connect(address).await?);
            }
        }
    }
    connections.into_iter().map(|connection| wire(&node, connection, case)).collect()
}

/// Default options, but for what the command line says.
fn options(case: Case, strategy: Strategy) -> io::Result<NodeOptions> {
    let number = |name| mode::option(name).map(|text| text.parse::<u32>().map_err(io::Error::other)).transpose();
    // Other contenders run between the turns of this one, for longer than a keep-alive lasts.
    let mut options =
        NodeOptions::new().max_connections(case.connections).keep_alive(Duration::ZERO).strategy(strategy);
    if let (Some(polls), Strategy::Adaptive { .. }) = (number("polls")?, strategy) {
        options = options.strategy(Strategy::Adaptive { polls });
    }
    if let Some(len) = number("payload")? {
        options = options.payload(len);
    }
    if let Some(count) = number("window")? {
        options = options.window(u16::try_from(count).map_err(io::Error::other)?);
    }
    Ok(options)
}
