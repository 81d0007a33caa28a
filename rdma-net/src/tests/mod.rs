//! Connections on the software device, between two nodes of one process.

mod batches;
mod blame;
#[cfg(feature = "bytes")]
mod bytes;
mod closing;
mod domains;
mod drivers;
mod ends;
mod fairness;
mod forks;
mod messages;
mod notifications;
mod observing;
mod path;
mod random;
mod remote;
mod set_up;
mod several_nodes;
mod shared_receives;
mod sinks;
mod stream;
mod turns;
mod wakers;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdma::aio::{Strategy, block_on};
use rdma::{Context, PathOptions};

use super::*;

/// Time for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

fn context() -> Context {
    rdma::open(&"soft0".parse().unwrap()).unwrap().context
}

fn options() -> NodeOptions {
    NodeOptions::new()
        .window(4)
        .payload(256)
        .timeout(LONG)
        .linger(LONG)
        .path(PathOptions::new().rnr_retry_count(0))
        .max_connections(8)
}

/// Options for each way to set up connections.
fn by_each_exchange() -> [NodeOptions; 2] {
    [Exchange::ConnectionManager, Exchange::Tcp].map(|exchange| options().exchange(exchange))
}

/// A node whose driver runs on a thread of its own, until the last handle is dropped.
fn node(options: &NodeOptions) -> (Node, JoinHandle<rdma::Result<()>>) {
    let (node, driver) = Node::new(&context(), options).unwrap();
    (node, thread::spawn(move || driver.run_blocking()))
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A client and a server with a listener.
struct World {
    client: Node,
    server: Node,
    listener: Listener,
    drivers: Vec<JoinHandle<rdma::Result<()>>>,
}

impl World {
    fn new(options: &NodeOptions) -> Self {
        Self::with(options, options, &ListenOptions::new())
    }

    fn with(client: &NodeOptions, server: &NodeOptions, listen: &ListenOptions) -> Self {
        let ((client, one), (server, two)) = (node(client), node(server));
        let listener = server.listen(any_port(), listen).unwrap();
        Self { client, server, listener, drivers: vec![one, two] }
    }

    /// Connects; returns the client's side and the server's.
    fn pair(&mut self) -> (Connection, Connection) {
        let (to, client) = (self.listener.local_addr(), self.client.clone());
        let connecting = thread::spawn(move || block_on(client.connect(to)).unwrap());
        let accepted = block_on(async { self.listener.accept().await?.accept().await }).unwrap();
        (connecting.join().unwrap(), accepted)
    }

    /// Drops all handles; the drivers must end by themselves.
    fn end(self) {
        let Self { client, server, listener, drivers } = self;
        drop((client, server, listener));
        for driver in drivers {
            driver.join().unwrap().unwrap();
        }
    }
}

/// Waits for both futures.
async fn join<A: Future, B: Future>(one: A, two: B) -> (A::Output, B::Output) {
    let (mut one, mut two) = (std::pin::pin!(one), std::pin::pin!(two));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none() {
            first = ready(one.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(two.as_mut().poll(cx));
        }
        let is_done = first.is_some() && second.is_some();
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

fn ready<T>(poll: std::task::Poll<T>) -> Option<T> {
    if let std::task::Poll::Ready(output) = poll { Some(output) } else { None }
}

/// Answers each message with the same bytes until the peer ends its data.
fn echo(connection: Connection) -> Result<(), Failure> {
    let (to, mut from) = connection.split();
    block_on(async {
        while let Some(message) = from.next().await? {
            to.send(&message).await?;
        }
        Ok(())
    })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}
