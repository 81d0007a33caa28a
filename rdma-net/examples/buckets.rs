//! The shortest key-value store: clients put values by messages, and read buckets one-sided.
//! [key_value.rs](key_value.rs) explains the steps.
//!
//! ```text
//! cargo run --example buckets --features tokio -- --listen 192.0.2.1:7471
//! cargo run --example buckets --features tokio -- 192.0.2.1:7471
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rdma::{DeviceSelector, RemoteAccess, RemoteSlice};
use rdma_net::{ListenOptions, Node, NodeOptions};

const BUCKETS: usize = 1 << 16;
/// Checksum, key, value.
const SLOT: usize = 128;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let context = rdma::open(&DeviceSelector::from_env()?)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new().max_connections(1000))?;
    driver.spawn()?;
    let address = std::env::args().nth(2);
    let Some(address) = address else { return client(&node, std::env::args().nth(1).ok_or("no address")?).await };
    let table = Arc::new(node.domain().allocate_exposed(BUCKETS * SLOT, RemoteAccess::READ)?);
    let mut listener = node.listen(address.parse()?, &ListenOptions::new())?;
    println!("listening at {}", listener.local_addr());
    loop {
        let (incoming, table) = (listener.accept().await?, Arc::clone(&table));
        tokio::spawn(async move {
            let mut connection = incoming.accept().await?;
            connection.send(table.remote(..)?.to_bytes()).await?;
            while let Some(put) = connection.next().await? {
                let Some((key, value)) = put.split_at_checked(16).filter(|_| put.len() <= SLOT - 8) else { break };
                let slot = [key, value, &[0; SLOT][..SLOT - 8 - put.len()]].concat();
                // One task at a time writes, and a reader sees by the checksum whether it met one.
                table.copy_in(bucket(key), &[&hash(&slot).to_ne_bytes()[..], &slot].concat())?;
                connection.send(b"ok").await?;
            }
            Result::Ok(())
        });
    }
}

async fn client(node: &Node, address: String) -> Result<()> {
    let mut connection = node.connect(address.parse()?).await?;
    let table = RemoteSlice::from_bytes(&connection.next().await?.ok_or("closed")?)?;
    let key = b"0123456789abcdef";
    connection.send([&key[..], b"value"].concat()).await?;
    connection.next().await?.ok_or("refused")?;
    let at = bucket(key);
    let slot = loop {
        let slot = connection.remote().fetch(table.slice(at..at + SLOT)?).await?;
        if slot[..8] == hash(&slot[8..]).to_ne_bytes() {
            break slot;
        }
    };
    println!("{}", slot[24..29].escape_ascii());
    connection.close().await?;
    Ok(())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The offset of a key's slot.
fn bucket(key: &[u8]) -> usize {
    usize::try_from(hash(key) % BUCKETS as u64).expect("less than BUCKETS") * SLOT
}
