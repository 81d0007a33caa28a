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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdma::DeviceSelector;
use rdma::aio::tokio::Readable;
use rdma_net::{Connection, Failure, ListenOptions, Listener, Node, NodeOptions, Receiver, Sender};
use tokio::sync::oneshot;
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
    let readable = Readable::new(&driver)?;
    tokio::spawn(driver.run(readable));
    Ok(node)
}

async fn serve(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async move { answer(incoming.accept().await?).await });
    }
}

/// A request is its number and the milliseconds that it takes: each has a task, so that a slow one
/// delays no other.
async fn answer(connection: Connection) -> Result<(), Failure> {
    let (to, mut from) = connection.split();
    while let Some(request) = from.next().await? {
        let Some((number, rest)) = request.split_first_chunk::<8>() else { break };
        let Some((work, _)) = rest.split_first_chunk::<8>() else { break };
        let (to, number, work) = (to.clone(), *number, Duration::from_millis(u64::from_be_bytes(*work)));
        tokio::spawn(async move {
            sleep(work).await;
            to.send([&number[..], b"done"].concat()).await
        });
    }
    Ok(())
}

/// The requests that wait for their answers.
type Waiting = Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>;

/// Hands the answers to those who wait. Nobody waits for the answer of a request that was given up.
async fn distribute(mut from: Receiver, waiting: Arc<Waiting>) -> Result<(), Failure> {
    while let Some(message) = from.next().await? {
        let Some((number, answer)) = message.split_first_chunk::<8>() else { break };
        let waits = waiting.lock().expect("no panic").remove(&u64::from_be_bytes(*number));
        if let Some(waits) = waits {
            let _given_up = waits.send(answer.to_vec());
        }
    }
    // Those who wait learn that no answer comes any more.
    waiting.lock().expect("no panic").clear();
    Ok(())
}

/// Sends a request and waits for its answer; `limit` is for both.
async fn request(
    to: &Sender,
    waiting: &Waiting,
    number: u64,
    work: u64,
    limit: Duration,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let (answer, answered) = oneshot::channel();
    waiting.lock().expect("no panic").insert(number, answer);
    let asked = timeout(limit, async {
        to.send([number.to_be_bytes(), work.to_be_bytes()].concat()).await?;
        Ok::<_, Box<dyn Error>>(answered.await?)
    });
    let answer = asked.await;
    waiting.lock().expect("no panic").remove(&number);
    answer?
}

async fn ask(node: &Node, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (to, from) = node.connect(server).await?.split();
    let waiting = Arc::default();
    tokio::spawn(distribute(from, Arc::clone(&waiting)));
    let (hour, limit) = (3_600_000, Duration::from_millis(50));
    let (slow, fast) =
        tokio::join!(request(&to, &waiting, 1, hour, limit), request(&to, &waiting, 2, 0, Duration::from_secs(60)),);
    println!("fast: {}", String::from_utf8_lossy(&fast?));
    println!("slow: {}", slow.expect_err("it takes an hour"));
    Ok(())
}
