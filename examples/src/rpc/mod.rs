//! Remote procedure calls over `rdma_net`: many clients, several calls in flight on each
//! connection, and a deadline for each call.
//!
//! The connections of the server share one queue of receives
//! ([`rdma_net::ListenOptions::shared_receives`]), so that a thousand idle clients cost little.
//! Memory is bounded: a connection has at most [`MAX_CALLS`] calls that are being answered, and
//! the server reads no further ones until an answer has left. A client that does not read its
//! answers stops itself only.

mod client;
pub mod load;
mod methods;
mod server;
mod wire;

use rdma_net::{ListenOptions, NodeOptions};

use std::time::Duration;

pub use client::{Client, call_once};
pub use methods::Method;
pub use server::serve;

/// The port of a server.
pub const PORT: u16 = 7177;
/// Calls of a connection that the server answers at the same time.
pub const MAX_CALLS: usize = 64;
/// Clients of a server.
pub const MAX_CLIENTS: u32 = 1000;
/// Bytes of a fragment: shorter messages are one, and lie in a receive.
const PAYLOAD: u32 = 1024;
/// Longest request or answer.
const MAX_MESSAGE: u32 = 256 << 10;
/// Longest body of a call.
pub const MAX_BODY: usize = 192 << 10;
/// Time after which a client that waits for no answer and sends nothing is disconnected, if the
/// user gives no other.
pub const IDLE: Duration = Duration::from_secs(300);
/// Time in which a new client must make its first call.
const FIRST_CALL: Duration = Duration::from_secs(10);

/// Options of a server's node, and of a client's with at most `connections` connections.
pub fn node_options(connections: u32) -> NodeOptions {
    let options = NodeOptions::new().window(16).payload(PAYLOAD).max_message(MAX_MESSAGE);
    options.max_connections(connections).keep_alive(Duration::from_secs(5))
}

/// Options of a server's listener: all clients share `receives` receives.
pub fn listen_options(receives: u32) -> ListenOptions {
    ListenOptions::new().shared_receives(receives).first_message(FIRST_CALL)
}
