//! A service for a thousand clients on tokio. On Ctrl-C it lets its clients finish for some
//! seconds, and says how many it had to cut off.
//!
//! Both sides run in this process, on the software device, or each in a process of its own; the
//! number of clients comes last:
//!
//! ```text
//! cargo run --example service --features tokio -- 1000
//! cargo run --example service --features tokio -- --listen 192.0.2.1:7471
//! cargo run --example service --features tokio -- 192.0.2.1:7471 1000
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use rdma::DeviceSelector;
use rdma_net::{Failure, Incoming, ListenOptions, Listener, Node, NodeOptions};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// Most clients of the service.
const CLIENTS: u32 = 1000;
/// Requests of each client.
const REQUESTS: u8 = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--listen", address] => {
            let service = listen(&DeviceSelector::from_env()?, address.parse()?)?;
            println!("listening at {}", service.1.local_addr());
            serve(service, async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await
        }
        [address, count] => use_service(&DeviceSelector::from_env()?, address.parse()?, count.parse()?).await,
        [] | [_] => {
            let (soft0, count) = ("soft0".parse()?, arguments.first().map_or(Ok(10), |count| count.parse())?);
            let service = listen(&soft0, "127.0.0.1:0".parse()?)?;
            let address = service.1.local_addr();
            let (stop, stopped) = oneshot::channel();
            let clients = async {
                use_service(&soft0, address, count).await?;
                let _ended = stop.send(());
                Ok(())
            };
            tokio::try_join!(serve(service, async { stopped.await.unwrap_or_default() }), clients).map(drop)
        }
        _ => Err("usage: service [CLIENTS] | --listen ADDRESS:PORT | ADDRESS:PORT CLIENTS".into()),
    }
}

/// A node, and its driver's task, which ends once the node and its connections are dropped.
type Running = (Node, JoinHandle<rdma::Result<()>>);

fn run(device: &DeviceSelector, options: &NodeOptions) -> Result<Running, Box<dyn Error>> {
    let context = rdma::open(device)?.context;
    let (node, driver) = Node::new(&context, options)?;
    Ok((node, driver.spawn()?))
}

fn listen(device: &DeviceSelector, at: SocketAddr) -> Result<(Running, Listener), Box<dyn Error>> {
    let running = run(device, &NodeOptions::new().max_connections(CLIENTS).timeout(Duration::from_secs(60)))?;
    // All clients may come at the same time. Few are busy at a time, so they share receives: each
    // begins with 6.
    let options = ListenOptions::new().backlog(CLIENTS as usize).shared_receives(CLIENTS * 6);
    let listener = running.0.listen(at, &options)?;
    Ok((running, listener))
}

/// Serves clients until `stop` is ready, and then ends in order.
async fn serve(
    ((node, driver), listener): (Running, Listener),
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    tokio::select! {
        failed = accept(listener) => failed?,
        () = stop => {}
    }
    // From now on `Connection::next` returns what has come, and then `None`.
    let cut_off = node.shutdown(Duration::from_secs(5)).await?;
    println!("{} clients were cut off", cut_off.len());
    drop(node);
    Ok(driver.await??)
}

/// Gives each client a task.
async fn accept(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async { answer(incoming).await.inspect_err(|failure| eprintln!("a client: {failure}")) });
    }
}

async fn answer(incoming: Incoming) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    while let Some(request) = connection.next().await? {
        connection.send(&request).await?;
    }
    Ok(())
}

/// Connects clients, all at the same time, each of which asks and waits for its answers.
async fn use_service(device: &DeviceSelector, service: SocketAddr, count: u32) -> Result<(), Box<dyn Error>> {
    let (node, _driver) = run(device, &NodeOptions::new().max_connections(count).timeout(Duration::from_secs(60)))?;
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let node = node.clone();
        clients.spawn(async move {
            let mut connection = node.connect(service).await?;
            for number in 0..REQUESTS {
                connection.send([number]).await?;
                let answer = connection.next().await?;
                assert_eq!(answer.as_deref(), Some(&[number][..]), "the answer");
            }
            connection.close().await
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    println!("{count} clients had {REQUESTS} answers each");
    Ok(())
}
