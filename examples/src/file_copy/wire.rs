//! The messages between sender and receiver. Files are worked on in the order in which they were
//! offered, so no message names one.
//!
//! A file's data goes in messages of its own: the byte [`DATA`], with which no order begins, and
//! the data.

use serde::{Deserialize, Serialize};

/// Bytes of a message of data before the data.
pub(super) const DATA_HEADER: usize = 1;
/// The first byte of a message of data.
pub(super) const DATA: u8 = 0xff;

/// A message of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order<'a> {
    /// A directory, with its permissions.
    Directory(u32, #[serde(with = "serde_bytes")] &'a [u8]),
    /// Offers a file: its permissions, length and path.
    File(u32, u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The data of the oldest offered file begins at this offset.
    Start(u64),
    /// The end of the file, with its checksum.
    End(u64),
    /// The contents of a directory are complete: it gets these permissions.
    Permissions(u32, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The sender compares what the receiver has of the oldest offered file, which takes a while.
    Comparing,
    /// The end of the copy, which the receiver confirms as it does a file.
    Last,
}

/// A message of the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The receiver has this many bytes of the file, with this checksum.
    Have(u64, u64),
    /// The file is complete, or the copy.
    Done,
    /// The copy has failed, for this reason.
    Failed(String),
}
