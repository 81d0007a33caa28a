//! The same service over TCP, to compare with: the same requests and answers, with their length in
//! front.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use rdma_net::Listener;
use tokio::io;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::client::{outcome, unknown};
use super::server::answer;
use super::wire::{Answer, Request};
use super::{FIRST_REQUEST, MAX_CLIENTS};
use crate::Failure;
use crate::exposed_table::{ExposedTable, MAX_KEY, MAX_VALUE, Refusal};
use crate::failure::say;
use crate::message::{decode, encode};

/// Time after which a client is accepted that could not be for lack of files.
const SHORTAGE: Duration = Duration::from_millis(50);
/// Ports that are tried where any will do. Those of TCP's connections are taken over TCP only.
const ATTEMPTS: u32 = 100;
/// Longest request or answer.
const MAX_FRAME: usize = MAX_KEY + MAX_VALUE + 64;

/// Listens at an address that `listen` has taken for connections over RDMA, over TCP too. If any
/// port will do, `listen` takes others until one is free over both.
///
/// # Errors
/// Errors of `listen`; the port is taken.
pub async fn listen_too(
    address: SocketAddr,
    listen: impl Fn(SocketAddr) -> Result<Listener, Failure>,
) -> Result<(Listener, TcpListener), Failure> {
    let mut attempts = if address.port() == 0 { ATTEMPTS } else { 1 };
    loop {
        let listener = listen(address)?;
        attempts -= 1;
        match TcpListener::bind(listener.local_addr()).await {
            Ok(over_tcp) => return Ok((listener, over_tcp)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
            Err(error) => {
                let taken = "the port is taken on iWARP and with --exchange tcp";
                let advice = "leave out --tcp, and give `load` --transport rdma";
                let address = listener.local_addr();
                return Err(Failure::new(format!("cannot listen on {address} over TCP: {error}; {taken}: {advice}")));
            }
        }
    }
}

/// Serves all clients of a listener, each in a task of its own. A client is disconnected that does
/// not send its first request within [`FIRST_REQUEST`], or that for `idle` asks nothing or takes no
/// answer. Clients beyond [`MAX_CLIENTS`] wait in the kernel's queue, and so do clients for which
/// there is no file; a shortage of files is said once.
pub async fn serve(listener: TcpListener, table: Arc<ExposedTable>, idle: Duration) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS as usize));
    let mut is_short = false;
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepting = poll_fn(|cx| {
            let accepted = listener.poll_accept(cx);
            // The shortage is over once no client waits.
            is_short &= accepted.is_ready();
            accepted
        });
        match accepting.await {
            Ok((stream, _)) => {
                let table = Arc::clone(&table);
                tokio::spawn(async move {
                    let served = serve_client(frames(stream)?, &table, idle).await;
                    drop(place);
                    served
                });
            }
            Err(error) => {
                if !is_short {
                    say(&format!("kv: clients over TCP wait: {}", Failure::from(error)));
                }
                is_short = true;
                tokio::time::sleep(SHORTAGE).await;
            }
        }
    }
}

async fn serve_client(mut frames: Frames, table: &ExposedTable, idle: Duration) -> Result<(), Failure> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut limit = FIRST_REQUEST;
    loop {
        let answer = answer(table, &timeout(limit, next(&mut frames)).await.map_err(late)??)?;
        timeout(idle, frames.send(Bytes::from(answer))).await.map_err(late)??;
        limit = idle;
    }
}

/// A client over TCP.
#[derive(Debug)]
pub struct Client(Frames);

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// If there is no server.
    pub async fn connect(server: SocketAddr) -> Result<Self, Failure> {
        let advice = "start the server with --tcp, or give --transport rdma";
        let stream = TcpStream::connect(server).await;
        let stream = stream.map_err(|error| Failure::new(format!("TCP to {server}: {error}; {advice}")))?;
        Ok(Self(frames(stream)?))
    }

    /// The value of a key, if it exists.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        let answer = self.ask(Request::Get(key)).await?;
        match decode(&answer) {
            Some(Answer::Value(_, value)) => Ok(Some(answer.slice_ref(value))),
            Some(Answer::Refused(Refusal::NoKey)) => Ok(None),
            _ => Err(unknown()),
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// If the server refuses; if the connection fails.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, Failure> {
        outcome(&self.ask(Request::Put(key, value, None)).await?)
    }

    async fn ask(&mut self, request: Request<'_>) -> Result<Bytes, Failure> {
        // Not `?`: an `EPIPE` means here that the server has left, not the reader of our output.
        let gone = |error| Failure::new(format!("the connection over TCP has failed: {error}"));
        self.0.send(Bytes::from(encode(&request)?)).await.map_err(gone)?;
        next(&mut self.0).await.map_err(gone)
    }
}

/// Frames: a length of 4 bytes, and as many bytes.
type Frames = Framed<TcpStream, LengthDelimitedCodec>;

fn frames(stream: TcpStream) -> io::Result<Frames> {
    stream.set_nodelay(true)?;
    Ok(LengthDelimitedCodec::builder().little_endian().max_frame_length(MAX_FRAME).new_framed(stream))
}

/// Receives a frame.
async fn next(frames: &mut Frames) -> io::Result<Bytes> {
    Ok(frames.try_next().await?.ok_or(io::ErrorKind::UnexpectedEof)?.freeze())
}

#[cfg(test)]
mod tests {
    use rdma_net::{ListenOptions, Node};

    use super::*;
    use crate::failure::Kind;
    use crate::kv::node_options;
    use crate::service::{self, runtime};

    #[test]
    fn any_port_is_one_that_is_free_over_tcp_too() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap();
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let (node, driver) = Node::new(&context, &node_options(1)).unwrap();
        std::thread::spawn(move || driver.run_blocking());
        let listen = |address| service::listen(&node, address, &ListenOptions::new());
        let rest = std::cell::Cell::new(2);
        let choose = |address| {
            rest.set(rest.get() - 1);
            listen(if rest.get() >= 0 { taken } else { address })
        };
        runtime().unwrap().block_on(async {
            let (listener, over_tcp) = listen_too("127.0.0.1:0".parse().unwrap(), choose).await.unwrap();
            assert_eq!(over_tcp.local_addr().unwrap(), listener.local_addr());
            let failure = listen_too(taken, listen).await.unwrap_err();
            assert!(failure.to_string().contains("leave out --tcp"), "{failure}");
        });
    }

    #[test]
    fn the_end_of_the_server_is_a_failure() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        runtime().unwrap().block_on(async {
            let mut client = Client::connect(address).await.unwrap();
            drop(listener.accept().unwrap());
            // After the first request the kernel knows that nobody reads.
            for _ in 0..3 {
                let failure = client.put(b"key", b"value").await.unwrap_err();
                assert_eq!(failure.kind(), Kind::Failed, "{failure}");
            }
        });
    }
}
