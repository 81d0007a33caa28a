//! Requests with deadlines, many at a time on one connection, on tokio. The client numbers its
//! requests, and drops the answers that come after their deadline.
//!
//! Both sides run in this process, on the software device, or each in a process of its own:
//!
//! ```text
//! cargo run --example requests --features tokio
//! cargo run --example requests --features tokio -- --listen 192.0.2.1:7471
//! cargo run --example requests --features tokio -- 192.0.2.1:7471
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdma::DeviceSelector;
use rdma_net::{Failure, Incoming, ListenOptions, Listener, Node, NodeOptions, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let node = node(&"soft0".parse()?)?;
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let address = listener.local_addr();
            tokio::spawn(serve(listener));
            ask(&node, address).await
        }
        ["--listen", address] => {
            let node = node(&DeviceSelector::from_env()?)?;
            let listener = node.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            Ok(serve(listener).await?)
        }
        [address] if !address.starts_with('-') => ask(&node(&DeviceSelector::from_env()?)?, address.parse()?).await,
        _ => Err("usage: requests [--listen ADDRESS:PORT | ADDRESS:PORT]".into()),
    }
}

fn node(device: &DeviceSelector) -> Result<Node, Box<dyn Error>> {
    let context = rdma::open(device)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    driver.spawn()?;
    Ok(node)
}

async fn serve(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async { answer(incoming).await.inspect_err(|failure| eprintln!("a client: {failure}")) });
    }
}

/// A request is its number and the milliseconds of work for it. Each has a task, so that a slow one
/// delays no other; the tasks of a client that has gone end.
async fn answer(incoming: Incoming) -> Result<(), Failure> {
    let (to, mut from) = incoming.accept().await?.split();
    let mut tasks = JoinSet::new();
    while let Some(request) = from.next().await? {
        let Some((number, rest)) = request.split_first_chunk::<8>() else { break };
        let Ok(work) = rest.try_into().map(u64::from_be_bytes) else { break };
        let (to, number) = (to.clone(), *number);
        tasks.spawn(async move {
            sleep(Duration::from_millis(work)).await;
            to.send([&number[..], b"done"].concat()).await
        });
        while tasks.try_join_next().is_some() {}
    }
    Ok(())
}

/// Requests that wait for their answers.
type Waiting = Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>;

/// The client's side of a connection.
struct Client {
    to: Sender,
    last_number: AtomicU64,
    waiting: Arc<Waiting>,
}

impl Client {
    /// Sends a request and waits for its answer, for at most `limit`.
    async fn request(&self, work: Duration, limit: Duration) -> Result<Vec<u8>, Box<dyn Error>> {
        let (number, work) = (self.last_number.fetch_add(1, Relaxed), u64::try_from(work.as_millis())?);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().expect("no panic").insert(number, answer);
        let done = timeout(limit, async {
            self.to.send([number.to_be_bytes(), work.to_be_bytes()].concat()).await?;
            answered.await.map_err(|_| "the connection has ended".into())
        })
        .await;
        self.waiting.lock().expect("no panic").remove(&number);
        done?
    }
}

/// Hands answers to the requests that wait. Nothing waits for one that comes after its deadline.
async fn take_answers(mut from: Receiver, waiting: Arc<Waiting>) -> Result<(), Failure> {
    let taken = async {
        while let Some(message) = from.next().await? {
            let Some((number, answer)) = message.split_first_chunk::<8>() else { break };
            let waits = waiting.lock().expect("no panic").remove(&u64::from_be_bytes(*number));
            let _was_late = waits.map(|waits| waits.send(answer.to_vec()));
        }
        Ok(())
    };
    let taken = taken.await;
    waiting.lock().expect("no panic").clear();
    taken
}

async fn ask(node: &Node, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (to, from) = node.connect(server).await?.split();
    let client = Client { to, last_number: AtomicU64::new(0), waiting: Arc::default() };
    let answers = tokio::spawn(take_answers(from, Arc::clone(&client.waiting)));
    let (slow, fast) = tokio::join!(
        client.request(Duration::from_secs(3600), Duration::from_millis(50)),
        client.request(Duration::ZERO, Duration::from_secs(60)),
    );
    println!("fast: {}", String::from_utf8_lossy(&fast?));
    println!("slow: {}", slow.expect_err("it takes an hour"));
    // Ends this side's data; the server then ends its own.
    drop(client);
    Ok(answers.await??)
}
