//! TCP and Unix sockets of tokio.

use std::io;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{Case, Wire};
use crate::pair::{Channel, Role};

/// A connection with bytes.
pub(super) struct ByteWire<S> {
    stream: S,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl<S> ByteWire<S> {
    pub(super) fn new(stream: S, size: usize) -> Self {
        Self { stream, sent: vec![0x5a; size], received: vec![0; size] }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for ByteWire<S> {
    async fn send(&mut self, len: usize) -> io::Result<()> {
        self.stream.write_all(&self.sent[..len]).await
    }

    async fn receive(&mut self, len: usize) -> io::Result<()> {
        self.stream.read_exact(&mut self.received[..len]).await.map(drop)
    }
}

/// Connects over TCP on loopback, without delays.
pub(super) async fn tcp(role: Role, channel: &mut Channel, case: Case) -> io::Result<Vec<ByteWire<TcpStream>>> {
    let mut streams = Vec::new();
    match role {
        Role::Leader => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            channel.send(&listener.local_addr()?.to_string())?;
            for _ in 0..case.connections {
                streams.push(listener.accept().await?.0);
            }
        }
        Role::Follower => {
            let address = channel.receive()?;
            for _ in 0..case.connections {
                streams.push(TcpStream::connect(&address).await?);
            }
        }
    }
    streams.iter().try_for_each(|stream| stream.set_nodelay(true))?;
    Ok(streams.into_iter().map(|stream| ByteWire::new(stream, case.size)).collect())
}

/// Connects over a Unix stream socket.
pub(super) async fn unix(role: Role, channel: &mut Channel, case: Case) -> io::Result<Vec<ByteWire<UnixStream>>> {
    let mut streams = Vec::new();
    match role {
        Role::Leader => {
            let name = format!("rdma-benches-{}-{}-{}", std::process::id(), case.size, case.connections);
            let name = format!("{name}-{:?}", case.waiting);
            let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            channel.send(&name)?;
            for _ in 0..case.connections {
                streams.push(listener.accept().await?.0);
            }
        }
        Role::Follower => {
            let address = SocketAddr::from_abstract_name(channel.receive()?)?;
            for _ in 0..case.connections {
                let stream = StdUnixStream::connect_addr(&address)?;
                stream.set_nonblocking(true)?;
                streams.push(UnixStream::from_std(stream)?);
            }
        }
    }
    Ok(streams.into_iter().map(|stream| ByteWire::new(stream, case.size)).collect())
}
