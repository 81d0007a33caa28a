//! Large messages without a copy: the receiver's device reads them from memory that the sender
//! exposes. Two threads send: one fills its memory while the receiver reads that of the other.
//!
//! Both sides run in this process, on the software device, or each in a process of its own:
//!
//! ```text
//! cargo run --example large_messages
//! cargo run --example large_messages -- --listen 192.0.2.1:7471
//! cargo run --example large_messages -- 192.0.2.1:7471
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rdma::aio::block_on;
use rdma::{DeviceSelector, RemoteAccess};
use rdma_net::{Failure, ListenOptions, Listener, Node, NodeOptions};

/// Bytes of a message.
const LEN: usize = 8 << 20;
/// Messages of each thread.
const MESSAGES: u8 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let node = node(&"soft0".parse()?)?;
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let address = listener.local_addr();
            let receiver = thread::spawn(move || receive(listener));
            send(&node, address)?;
            Ok(receiver.join().expect("no panic")?)
        }
        ["--listen", address] => {
            let listener = node(&DeviceSelector::from_env()?)?.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            Ok(receive(listener)?)
        }
        [address] if !address.starts_with('-') => send(&node(&DeviceSelector::from_env()?)?, address.parse()?),
        _ => Err("usage: large_messages [--listen ADDRESS:PORT | ADDRESS:PORT]".into()),
    }
}

fn node(device: &DeviceSelector) -> Result<Node, Box<dyn Error>> {
    let context = rdma::open(device)?.context;
    // Longer messages than 1 MiB must be allowed, at the receiver: it needs memory for them.
    let (node, driver) = Node::new(&context, &NodeOptions::new().max_message(u32::try_from(LEN)?))?;
    thread::spawn(move || driver.run_blocking());
    Ok(node)
}

/// Counts the bytes of one sender, and returns their number to it.
fn receive(mut listener: Listener) -> Result<(), Failure> {
    block_on(async {
        let mut connection = listener.accept().await?.accept().await?;
        let mut count = 0;
        while let Some(message) = connection.next().await? {
            assert_eq!(message.first(), message.last(), "each message is whole");
            count += message.len() as u64;
        }
        // The sender has ended its data; this side may still send.
        connection.send(count.to_be_bytes()).await?;
        connection.close().await.map(drop)
    })
}

fn send(node: &Node, to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (sender, mut receiver) = block_on(node.connect(to))?.split();
    let threads = [sender.clone(), sender].map(|sender| {
        thread::spawn(move || {
            let memory = sender.domain().allocate_exposed(LEN, RemoteAccess::READ)?;
            for number in 0..MESSAGES {
                memory.fill(0, LEN, number)?;
                // Returns once the receiver's device has read it, so the memory may change again.
                block_on(sender.send_exposed(memory.slice(..)?))?;
            }
            // Both senders are dropped at last, which ends the data.
            Ok::<(), Failure>(())
        })
    });
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    let count = block_on(receiver.next())?.ok_or("the receiver has not counted")?;
    println!("{} bytes have come", u64::from_be_bytes(count[..].try_into()?));
    drop((count, receiver));
    // Both halves are gone, so the connection closes: waits for that.
    block_on(node.shutdown(Duration::from_secs(5)))?;
    Ok(())
}
