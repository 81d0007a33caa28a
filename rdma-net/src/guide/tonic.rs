//! The transport of tonic over `rdma_net`: the streams of a server, and the connector of a client.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rdma_net::{Failure, Listener, Node, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Uri, server::Connected};
use tower::{Service, service_fn};

/// The connector of a channel, for `Endpoint::connect_with_connector`. It connects again whenever
/// the channel has lost its connection.
pub(crate) fn connector(
    node: Node,
    to: SocketAddr,
) -> impl Service<Uri, Response = TokioIo<Stream>, Error = Failure, Future: Send> {
    service_fn(move |_: Uri| {
        let node = node.clone();
        async move { Ok(TokioIo::new(node.connect(to).await?.into_stream())) }
    })
}

/// The streams of a listener's clients, for `Server::serve_with_incoming`.
pub(crate) fn incoming(mut listener: Listener) -> ReceiverStream<Result<Io, Failure>> {
    let (to, streams) = mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            let incoming = tokio::select! {
                incoming = listener.accept() => incoming,
                // The server has ended.
                () = to.closed() => return,
            };
            let to = to.clone();
            match incoming {
                // A slow client holds no other up.
                Ok(incoming) => drop(tokio::spawn(async move {
                    let stream = incoming.accept().await.map(|connection| Io(connection.into_stream()));
                    to.send(stream).await
                })),
                Err(failure) => return drop(to.send(Err(failure)).await),
            }
        }
    });
    ReceiverStream::new(streams)
}

/// A stream that tells the server its peer, by a trait that tonic's server asks for.
pub(crate) struct Io(Stream);

impl Connected for Io {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Option<SocketAddr> {
        self.0.peer_addr()
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
