//! HTTP by hyper over `rdma_net`: a server of both versions, and clients.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rdma_net::{Failure, Listener, Node};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves the clients of a listener, each in a task of its own: by HTTP/1 or HTTP/2, as its first
/// bytes tell.
pub(crate) async fn serve(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async move {
            let stream = TokioIo::new(incoming.accept().await?.into_stream());
            auto::Builder::new(TokioExecutor::new()).serve_connection(stream, service_fn(answer)).await
        });
    }
}

/// Returns the body of a request.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

/// Connects by HTTP/1: one request at a time.
pub(crate) async fn by_http1(node: &Node, to: SocketAddr) -> Result<http1::SendRequest<Full<Bytes>>, Error> {
    let stream = TokioIo::new(node.connect(to).await?.into_stream());
    let (requests, connection) = http1::handshake(stream).await?;
    // The task ends once the sender of requests is dropped.
    tokio::spawn(connection);
    Ok(requests)
}

/// Connects by HTTP/2: many requests at a time, by clones of the sender.
pub(crate) async fn by_http2(node: &Node, to: SocketAddr) -> Result<http2::SendRequest<Full<Bytes>>, Error> {
    let stream = TokioIo::new(node.connect(to).await?.into_stream());
    let (requests, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
    tokio::spawn(connection);
    Ok(requests)
}
