//! Messages and byte streams of `rdma::net`.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rdma::Context;
use rdma::aio::Strategy;
use rdma::aio::tokio::Readable;
use rdma::net::{Connection, ListenOptions, Node, NodeOptions, Stream};

use super::sockets::ByteWire;
use super::{Case, Wire};
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
        match self.connection.next().await? {
            Some(message) if message.len() == len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Connects for messages.
pub(super) async fn messages(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    case: Case,
    strategy: Strategy,
) -> io::Result<Vec<MessageWire>> {
    let connections = connect(role, channel, context, case, strategy).await?;
    let wire = |connection| MessageWire { connection, message: vec![0x5a; case.size] };
    Ok(connections.into_iter().map(wire).collect())
}

/// Connects for bytes.
pub(super) async fn streams(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    case: Case,
    strategy: Strategy,
) -> io::Result<Vec<ByteWire<Stream>>> {
    let connections = connect(role, channel, context, case, strategy).await?;
    Ok(connections.into_iter().map(|connection| ByteWire::new(connection.into_stream(), case.size)).collect())
}

async fn connect(
    role: Role,
    channel: &mut Channel,
    context: &Context,
    case: Case,
    strategy: Strategy,
) -> io::Result<Vec<Connection>> {
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
    Ok(connections)
}

/// Default options, or for large requests the ones that a program with such requests would choose:
/// fragments in which a request fits, and fewer of them.
fn options(case: Case, strategy: Strategy) -> io::Result<NodeOptions> {
    let number = |name| mode::option(name).map(|text| text.parse::<u32>().map_err(io::Error::other)).transpose();
    // Other contenders run between the turns of this one, for longer than a keep-alive lasts.
    let mut options =
        NodeOptions::new().max_connections(case.connections).keep_alive(Duration::ZERO).strategy(strategy);
    if case.size > 4096 {
        options = options.payload(u32::try_from(case.size).map_err(io::Error::other)?).window(4);
    }
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
