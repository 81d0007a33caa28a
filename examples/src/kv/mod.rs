//! A key-value service whose clients read the server's memory.
//!
//! The server exposes a hash table for reading ([`exposed_table`](crate::exposed_table)). A client
//! finds a key by one-sided reads, in which the server's processor has no part. Writes go by
//! message ([`wire`]) to the server, which alone changes the table; so do the reads of keys that
//! change all the time.

mod client;
pub mod load;
mod server;
pub mod tcp;
#[cfg(test)]
mod tests;
pub mod wire;

use std::time::Duration;

use rdma_net::NodeOptions;

pub use client::Client;
pub use server::{ServerOptions, answer, serve};

use crate::exposed_table::{MAX_KEY, MAX_VALUE};

/// The port of a server.
pub const PORT: u16 = 7175;
/// Clients of a server over RDMA, and as many over TCP.
pub const MAX_CLIENTS: u32 = 1000;
/// Bytes of a fragment: shorter messages are one, and lie in a receive.
const PAYLOAD: u32 = 2048;
/// Time in which a new client must send its first request.
pub const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// Options of a server's node, and of a client's with at most `connections` connections.
pub fn node_options(connections: u32) -> NodeOptions {
    let longest = u32::try_from(MAX_KEY + MAX_VALUE + 64).unwrap_or(u32::MAX);
    let options = NodeOptions::new().window(4).payload(PAYLOAD).max_message(longest);
    options.max_connections(connections).keep_alive(Duration::from_secs(5))
}
