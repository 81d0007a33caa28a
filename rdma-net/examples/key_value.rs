//! A key-value store: clients put values by messages, and get them by one-sided reads, in which the
//! server's processor has no part.
//!
//! Both sides run in this process, on the software device, or each in a process of its own:
//!
//! ```text
//! cargo run --example key_value
//! cargo run --example key_value -- --listen 192.0.2.1:7471
//! cargo run --example key_value -- 192.0.2.1:7471
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use rdma::aio::block_on;
use rdma::{DeviceSelector, ExposedRegion, RemoteAccess, RemoteSlice};
use rdma_net::{Incoming, ListenOptions, Listener, Node, NodeOptions, Remote};

/// Bytes of a slot: a checksum of the rest, the lengths of key and value, and both of them.
const SLOT: usize = 64;
const SLOTS: usize = 1 << 16;

/// The table, which one client changes at a time.
type Table = Arc<Mutex<ExposedRegion>>;
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let node = node(&"soft0".parse()?)?;
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let (address, table) = (listener.local_addr(), table(&node)?);
            thread::spawn(move || serve(listener, &table));
            use_store(&node, address)
        }
        ["--listen", address] => {
            let node = node(&DeviceSelector::from_env()?)?;
            let listener = node.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            serve(listener, &table(&node)?)
        }
        [address] if !address.starts_with('-') => use_store(&node(&DeviceSelector::from_env()?)?, address.parse()?),
        _ => Err("usage: key_value [--listen ADDRESS:PORT | ADDRESS:PORT]".into()),
    }
}

fn node(device: &DeviceSelector) -> Result<Node> {
    let (node, driver) = Node::new(&rdma::open(device)?.context, &NodeOptions::new())?;
    thread::spawn(move || driver.run_blocking());
    Ok(node)
}

/// Peers may read it, and not write.
fn table(node: &Node) -> Result<Table> {
    Ok(Arc::new(Mutex::new(node.domain().allocate_exposed(SLOTS * SLOT, RemoteAccess::READ)?)))
}

fn serve(mut listener: Listener, table: &Table) -> Result<()> {
    loop {
        let (incoming, table) = (block_on(listener.accept())?, Arc::clone(table));
        thread::spawn(move || {
            let peer = incoming.peer_addr();
            if let Err(error) = block_on(serve_client(incoming, &table)) {
                eprintln!("client {peer:?}: {error}");
            }
        });
    }
}

/// Tells a client where the table is, and puts what the client asks for.
async fn serve_client(incoming: Incoming, table: &Table) -> Result<()> {
    let mut connection = incoming.accept().await?;
    let place = table.lock().expect("no panic").remote(..)?;
    connection.send(place.to_bytes()).await?;
    while let Some(put) = connection.next().await? {
        let answer = if store(table, &put)? { "ok" } else { "refused" };
        connection.send(answer).await?;
    }
    Ok(())
}

/// Stores an entry. Returns false if it is invalid, or if another key has its slot: a real store
/// would try further slots.
fn store(table: &Table, entry: &[u8]) -> Result<bool> {
    let Some((key, _)) = parts(entry).filter(|_| entry.len() <= SLOT - 8) else { return Ok(false) };
    let (at, mut slot) = (offset(key), [0; SLOT]);
    let table = table.lock().expect("no panic");
    table.copy_out(at, &mut slot)?;
    if slot != [0; SLOT] && parts(&slot[8..]).is_some_and(|(other, _)| other != key) {
        return Ok(false);
    }
    slot = [0; SLOT];
    slot[8..][..entry.len()].copy_from_slice(entry);
    let checksum = hash(&slot[8..]);
    slot[..8].copy_from_slice(&checksum.to_be_bytes());
    table.copy_in(at, &slot)?;
    Ok(true)
}

/// The key and the value of an entry; `None` if its lengths exceed it.
fn parts(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let ([key_len, value_len], rest) = entry.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(*key_len))?;
    Some((key, rest.get(..usize::from(*value_len))?))
}

fn offset(key: &[u8]) -> usize {
    usize::try_from(hash(key) % SLOTS as u64).expect("less than SLOTS") * SLOT
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Reads a value from the server's table.
async fn get(remote: &Remote, table: RemoteSlice, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let at = offset(key);
    loop {
        let slot = remote.fetch(table.slice(at..at + SLOT)?).await?;
        if slot[..] == [0; SLOT] {
            return Ok(None);
        }
        // A slot that changed during the read may be a mixture: its checksum is wrong, so read again.
        if slot[..8] == hash(&slot[8..]).to_be_bytes() {
            let value = parts(&slot[8..]).filter(|(other, _)| *other == key).map(|(_, value)| value.to_vec());
            return Ok(value);
        }
    }
}

fn use_store(node: &Node, server: SocketAddr) -> Result<()> {
    block_on(async {
        let mut connection = node.connect(server).await?;
        let table = RemoteSlice::from_bytes(&connection.next().await?.ok_or("the server has no table")?)?;
        for (key, value) in [("colour", "red"), ("shape", "round"), ("colour", "green")] {
            let lengths = [u8::try_from(key.len())?, u8::try_from(value.len())?];
            connection.send([&lengths, key.as_bytes(), value.as_bytes()].concat()).await?;
            let answer = connection.next().await?.ok_or("the server has gone")?;
            if &answer[..] != b"ok" {
                return Err(format!("{key}: {}", answer.escape_ascii()).into());
            }
        }
        for key in ["colour", "shape", "size"] {
            let value = get(&connection.remote(), table, key.as_bytes()).await?;
            println!("{key}: {}", value.map_or("none".into(), |value| value.escape_ascii().to_string()));
        }
        connection.close().await?;
        Ok(())
    })
}
