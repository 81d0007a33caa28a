//! The messages between client and server. Each request has one answer; answers come in the order
//! of the requests.

use rdma::RemoteSlice;
use serde::{Deserialize, Serialize};

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Asks where the table is.
    Open,
    /// Asks for the value of a key.
    Get(#[serde(with = "serde_bytes")] &'a [u8]),
    /// Sets a key to a value. With a sequence number, only if the key has that one; 0 for no key.
    Put(#[serde(with = "serde_bytes")] &'a [u8], #[serde(with = "serde_bytes")] &'a [u8], Option<u64>),
    /// Removes a key; with a sequence number, only if the key has that one.
    Delete(#[serde(with = "serde_bytes")] &'a [u8], Option<u64>),
}

/// An answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The memory of the table, and the number of its buckets.
    Table([u8; RemoteSlice::WIRE_LEN], u64),
    /// The value of a key, with its sequence number.
    Value(u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The change was made, with this sequence number.
    Done(u64),
    /// The change was not made.
    Refused(Refusal),
}

/// The reason why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The key does not exist.
    #[error("the key does not exist")]
    NoKey,
    /// The key has another sequence number than the caller expects: this one, or 0 for none.
    #[error("{}", conflict(*.0))]
    Conflict(u64),
    /// No slot or no memory is left for the key.
    #[error("the server has no room for the key; give it more --memory or --keys")]
    Full,
    /// The key or the value is too long.
    #[error("the key or the value is too long for the server")]
    TooLong,
}

fn conflict(sequence: u64) -> String {
    match sequence {
        0 => "the key does not exist, so it has no sequence number".to_owned(),
        sequence => format!("the key has changed: its sequence number is {sequence}"),
    }
}
