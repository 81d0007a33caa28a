//! The messages between client and server. Answers come in any order, so each names its call.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request<'a> {
    /// The client's number of the call.
    pub(super) id: u32,
    /// Time that the client still waits.
    pub(super) time: Duration,
    pub(super) method: u8,
    #[serde(with = "serde_bytes")]
    pub(super) body: &'a [u8],
}

/// The end of a call at the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The result.
    Done(Bytes),
    /// The reason why there is no result.
    Failed(String),
    /// The client's time was over.
    Late,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) id: u32,
    pub(super) outcome: Outcome,
}
