//! A key-value service whose clients read the server's memory.
//!
//! The table lies in a region that the server exposes for reading ([`block`] is its format). A
//! client finds a key by one-sided reads: both buckets of the key at once, then the block that a
//! slot names. The server's processor has no part in it. Writes go by message ([`wire`]) to the
//! server, which alone changes the table ([`table`] decides how).
//!
//! A read may meet a write. Three rules make a client get whole values only:
//!
//! * A change writes a new block, and then one slot of 8 bytes that names the block. Devices keep
//!   aligned words of 8 bytes whole; nothing else is assumed of a read.
//! * The block that was replaced is left alone for a grace time.
//! * A block has a checksum of its key, sequence number and value. A client that finds another key
//!   or a wrong checksum in a block begins again at the bucket, and after some attempts asks by
//!   message.
//!
//! The order of the two reads matters: the client waits for the first before it posts the second.

pub mod block;
mod client;
pub mod load;
mod server;
pub mod table;
pub mod tcp;
#[cfg(test)]
mod tests;
pub mod wire;

use std::time::Duration;

use rdma::net::NodeOptions;

pub use client::{Client, Counts, Value};
pub use server::{ServerOptions, Store, serve};
pub use wire::Refusal;

use block::{MAX_KEY, MAX_VALUE};

/// The port of a server.
pub const PORT: u16 = 7175;
/// Clients of a server.
pub const MAX_CLIENTS: u32 = 1000;

/// Options of a server's node, and of a client's with at most `connections` connections.
pub fn node_options(connections: u32) -> NodeOptions {
    let longest = u32::try_from(MAX_KEY + MAX_VALUE + 64).unwrap_or(u32::MAX);
    let options = NodeOptions::new().window(4).payload(2048).max_message(longest);
    options.max_connections(connections).keep_alive(Duration::from_secs(5))
}
