//! The messages between client and server. Each request has one answer; answers come in the order
//! of the requests.

use rdma::RemoteSlice;
use serde::{Deserialize, Serialize};

use crate::exposed_table::Refusal;

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
    Table([u8; RemoteSlice::LEN], u64),
    /// The value of a key, with its sequence number.
    Value(u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The change was made, with this sequence number.
    Done(u64),
    /// The change was not made.
    Refused(Refusal),
}
