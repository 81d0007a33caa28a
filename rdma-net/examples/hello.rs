//! Messages: a server that answers each message in capitals, and a client, without an executor.
//!
//! Both sides run in this process, on the software device, or each in a process of its own:
//!
//! ```text
//! cargo run --example hello
//! cargo run --example hello -- --listen 192.0.2.1:7471
//! cargo run --example hello -- 192.0.2.1:7471
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use rdma::DeviceSelector;
use rdma::aio::block_on;
use rdma_net::{Failure, Incoming, ListenOptions, Listener, Node, NodeOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let node = node(&"soft0".parse()?)?;
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let address = listener.local_addr();
            thread::spawn(move || serve(listener));
            ask(&node, address)
        }
        ["--listen", address] => {
            let node = node(&DeviceSelector::from_env()?)?;
            let listener = node.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            Ok(serve(listener)?)
        }
        [address] if !address.starts_with('-') => ask(&node(&DeviceSelector::from_env()?)?, address.parse()?),
        _ => Err("usage: hello [--listen ADDRESS:PORT | ADDRESS:PORT]".into()),
    }
}

/// A node whose driver runs on a thread, until the node and its connections are dropped.
fn node(device: &DeviceSelector) -> Result<Node, Box<dyn Error>> {
    let context = rdma::open(device)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    thread::spawn(move || driver.run_blocking());
    Ok(node)
}

/// Serves each client on a thread of its own.
fn serve(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = block_on(listener.accept())?;
        thread::spawn(move || block_on(answer(incoming)).inspect_err(|failure| eprintln!("a client: {failure}")));
    }
}

/// Answers requests until the client ends its data. Dropping the connection closes it.
async fn answer(incoming: Incoming) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    while let Some(request) = connection.next().await? {
        connection.send(request.to_ascii_uppercase()).await?;
    }
    Ok(())
}

fn ask(node: &Node, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    block_on(async {
        let mut connection = node.connect(server).await?;
        connection.send("hello").await?;
        let answer = connection.next().await?.ok_or("the server has closed the connection")?;
        println!("{}", String::from_utf8_lossy(&answer));
        drop(answer);
        // Waits until the server has closed too.
        connection.close().await?;
        Ok(())
    })
}
