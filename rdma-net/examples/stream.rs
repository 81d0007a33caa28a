//! A file over a byte stream, which has tokio's `AsyncRead` and `AsyncWrite`: what copies between
//! TCP sockets copies between RDMA connections.
//!
//! This process copies itself on the software device, or each side has a process of its own:
//!
//! ```text
//! cargo run --example stream --features tokio
//! cargo run --example stream --features tokio -- --listen 192.0.2.1:7471 COPY
//! cargo run --example stream --features tokio -- 192.0.2.1:7471 FILE
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use rdma::DeviceSelector;
use rdma_net::{ListenOptions, Listener, Node, NodeOptions};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let (node, path) = (node(&"soft0".parse()?)?, std::env::current_exe()?);
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let (address, mut copy) = (listener.local_addr(), Vec::new());
            tokio::try_join!(receive(listener, &mut copy), send(&node, address, File::open(&path).await?))?;
            let is_same = copy == tokio::fs::read(&path).await?;
            if is_same { Ok(()) } else { Err("the copy is not what was sent".into()) }
        }
        ["--listen", address, path] => {
            let node = node(&DeviceSelector::from_env()?)?;
            let listener = node.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            receive(listener, &mut File::create(path).await?).await?;
            // Waits until the connection has closed: until then, the answer is under way.
            node.shutdown(Duration::from_secs(5)).await?;
            Ok(())
        }
        [address, path] => {
            let node = node(&DeviceSelector::from_env()?)?;
            send(&node, address.parse()?, File::open(path).await?).await
        }
        _ => Err("usage: stream [--listen ADDRESS:PORT COPY | ADDRESS:PORT FILE]".into()),
    }
}

fn node(device: &DeviceSelector) -> Result<Node, Box<dyn Error>> {
    let context = rdma::open(device)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    driver.spawn()?;
    Ok(node)
}

/// Receives one file, and answers with its length.
async fn receive(mut listener: Listener, copy: &mut (impl AsyncWrite + Unpin)) -> Result<(), Box<dyn Error>> {
    let mut stream = listener.accept().await?.accept().await?.into_stream();
    let len = tokio::io::copy(&mut stream, copy).await?;
    copy.flush().await?;
    // Dropping the stream closes it, after this.
    Ok(stream.write_u64(len).await?)
}

/// Sends a file, and waits until the peer has it.
async fn send(node: &Node, to: SocketAddr, mut file: File) -> Result<(), Box<dyn Error>> {
    let mut stream = node.connect(to).await?.into_stream();
    let len = tokio::io::copy(&mut file, &mut stream).await?;
    // Ends this side's data; answers still come.
    stream.shutdown().await?;
    // The peer's program has the file: a shutdown alone says less.
    if stream.read_u64().await? != len {
        return Err("the peer has received a part of the file".into());
    }
    println!("the peer has all {len} bytes");
    Ok(())
}
