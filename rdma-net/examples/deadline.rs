//! The shortest service on tokio for a thousand clients, with a deadline for each request and an
//! orderly end on Ctrl-C. [service.rs](service.rs) explains the steps; clients are those of
//! [hello.rs](hello.rs).
//!
//! ```text
//! cargo run --example deadline --features tokio -- 192.0.2.1:7471
//! cargo run --example hello -- 192.0.2.1:7471
//! ```

use std::time::Duration;

use rdma::DeviceSelector;
use rdma_net::{ListenOptions, Node, NodeOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let context = rdma::open(&DeviceSelector::from_env()?)?.context;
    let options = NodeOptions::new().max_connections(1000).window(16).payload(4096);
    let (node, driver) = Node::new(&context, &options)?;
    let driver = driver.spawn()?;
    let address = std::env::args().nth(1).ok_or("no address")?.parse()?;
    let mut listener = node.listen(address, &ListenOptions::new().shared_receives(6000))?;
    println!("listening at {}", listener.local_addr());
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            incoming = listener.accept() => {
                let incoming = incoming?;
                tasks.spawn(async move {
                    let connection = incoming.accept().await?;
                    println!("peer {:?}", connection.peer_addr());
                    let (sender, mut receiver) = connection.split();
                    while let Some(request) = tokio::time::timeout(Duration::from_secs(60), receiver.next()).await?? {
                        sender.send(request.to_ascii_uppercase()).await?;
                    }
                    sender.close().await?;
                    Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
                });
            }
            Some(_) = tasks.join_next() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    // Tasks see the end of the data; clients that are idle or slow are cut off.
    node.shutdown(Duration::from_secs(5)).await?;
    while tasks.join_next().await.is_some() {}
    drop((listener, node));
    driver.await??;
    Ok(())
}
