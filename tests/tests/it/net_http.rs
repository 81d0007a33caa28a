//! HTTP/1 by hyper over the byte streams of `rdma_net`.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, client, server, service::service_fn};
use rdma::PathOptions;
use rdma_net::{ListenOptions, Node, NodeOptions, Stream};
use rdma_tests::cm::{address, any_port, available};
use rdma_tests::{LIMIT, open};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream with the traits of hyper.
struct Io(Stream);

impl Read for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let len = bytes.len().min(buf.remaining());
        let mut read = ReadBuf::new(&mut bytes[..len]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
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

/// All bytes of a body.
async fn collect(body: Incoming) -> Vec<u8> {
    let (mut body, mut all) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        all.extend_from_slice(frame.unwrap().data_ref().unwrap_or(&Bytes::new()));
    }
    all
}

/// Answers with the path and the body of the request.
async fn answer(request: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = collect(request.into_body()).await;
    Ok(Response::new(format!("{path} {}", String::from_utf8_lossy(&body))))
}

#[test]
fn hyper_serves_requests_over_a_stream() {
    let context = open().context;
    if !available(&context) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let options = NodeOptions::new().path(PathOptions::new().rnr_retry_count(0)).timeout(LIMIT).linger(LIMIT);
        let (node, driver) = Node::new(&context, &options).unwrap();
        let readable = rdma::aio::tokio::Readable::new(&driver).unwrap();
        let driving = tokio::spawn(driver.run(readable));
        let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new()).unwrap();
        let to = listener.local_addr();
        let serving = tokio::task::spawn_local(async move {
            let io = Io(listener.accept().await.unwrap().accept().await.unwrap().into_stream());
            server::conn::http1::Builder::new().serve_connection(io, service_fn(answer)).await.unwrap();
        });

        let io = Io(node.connect(to).await.unwrap().into_stream());
        let (mut requests, connection) = client::conn::http1::handshake(io).await.unwrap();
        let connection = tokio::task::spawn_local(connection);
        for len in [0, 1, 5000, 300_000] {
            let body = "x".repeat(len);
            let request = Request::post("/echo").header("host", "test").body(body.clone()).unwrap();
            let response = tokio::time::timeout(LIMIT, requests.send_request(request)).await.unwrap().unwrap();
            assert!(collect(response.into_body()).await == format!("/echo {body}").as_bytes(), "{len} bytes");
        }
        drop(requests);
        connection.await.unwrap().unwrap();
        serving.await.unwrap();
        drop(node);
        driving.await.unwrap().unwrap();
    }));
}
