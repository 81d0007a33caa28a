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

/// Bytes of a key, and of a value.
const KEY: usize = 16;
const VALUE: usize = 40;
/// Bytes of a slot: a checksum, a key and its value. Each key has one slot.
const SLOT: usize = 8 + KEY + VALUE;
const SLOTS: usize = 1 << 16;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let node = node(&"soft0".parse()?)?;
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let (client, address) = (node.clone(), listener.local_addr());
            thread::spawn(move || serve(&node, listener));
            use_store(&client, address)
        }
        ["--listen", address] => {
            let node = node(&DeviceSelector::from_env()?)?;
            let listener = node.listen(address.parse()?, &ListenOptions::new())?;
            println!("listening at {}", listener.local_addr());
            serve(&node, listener)
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

fn serve(node: &Node, mut listener: Listener) -> Result<()> {
    // Clients may read the table, and not write it.
    let table = Arc::new(Mutex::new(node.domain().allocate_exposed(SLOTS * SLOT, RemoteAccess::READ)?));
    loop {
        let (incoming, table) = (block_on(listener.accept())?, Arc::clone(&table));
        thread::spawn(move || block_on(answer(incoming, &table)).inspect_err(|error| eprintln!("a client: {error}")));
    }
}

/// Tells a client where the table is, and puts what the client asks for.
async fn answer(incoming: Incoming, table: &Mutex<ExposedRegion>) -> Result<()> {
    let mut connection = incoming.accept().await?;
    let place = table.lock().expect("no panic").remote(..)?;
    connection.send(place.to_bytes()).await?;
    while let Some(put) = connection.next().await? {
        let answer = if store(table, &put)? { "ok" } else { "refused" };
        connection.send(answer).await?;
    }
    Ok(())
}

/// Stores a key and its value. Returns false for other bytes, and if another key has the slot: a
/// real store would try further slots.
fn store(table: &Mutex<ExposedRegion>, entry: &[u8]) -> Result<bool> {
    let Ok(entry) = <&[u8; KEY + VALUE]>::try_from(entry) else { return Ok(false) };
    let (at, mut slot) = (offset(&entry[..KEY]), [0; SLOT]);
    let table = table.lock().expect("no panic");
    table.copy_out(at, &mut slot)?;
    if slot != [0; SLOT] && slot[8..][..KEY] != entry[..KEY] {
        return Ok(false);
    }
    slot[..8].copy_from_slice(&hash(entry).to_be_bytes());
    slot[8..].copy_from_slice(entry);
    table.copy_in(at, &slot)?;
    Ok(true)
}

fn offset(key: &[u8]) -> usize {
    usize::try_from(hash(key) % SLOTS as u64).expect("less than SLOTS") * SLOT
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Reads the value of a key from the server's table.
async fn get(remote: &Remote, table: RemoteSlice, key: &[u8; KEY]) -> Result<Option<Vec<u8>>> {
    let at = offset(key);
    loop {
        let slot = remote.fetch(table.slice(at..at + SLOT)?).await?;
        let (checksum, entry) = slot.split_at(8);
        // A read of a slot that changes may mix old and new bytes: the checksum shows it.
        if checksum == hash(entry).to_be_bytes() {
            return Ok((entry[..KEY] == key[..]).then(|| entry[KEY..].to_vec()));
        }
        if slot[..] == [0; SLOT] {
            return Ok(None);
        }
    }
}

fn use_store(node: &Node, server: SocketAddr) -> Result<()> {
    block_on(async {
        let mut connection = node.connect(server).await?;
        let table = RemoteSlice::from_bytes(&connection.next().await?.ok_or("the server has no table")?)?;
        for (key, value) in [("colour", "red"), ("shape", "round"), ("colour", "green")] {
            connection.send([padded::<KEY>(key)?.as_slice(), &padded::<VALUE>(value)?].concat()).await?;
            let answer = connection.next().await?.ok_or("the server has gone")?;
            println!("{key} = {value}: {}", answer.escape_ascii());
        }
        for key in ["colour", "shape", "size"] {
            let value = get(&connection.remote(), table, &padded(key)?).await?;
            println!("{key}: {}", value.as_deref().unwrap_or(b"none").trim_ascii_end().escape_ascii());
        }
        connection.close().await?;
        Ok(())
    })
}

/// A text with spaces behind it.
fn padded<const LEN: usize>(text: &str) -> Result<[u8; LEN]> {
    Ok(format!("{text:LEN$}").as_bytes().try_into()?)
}
