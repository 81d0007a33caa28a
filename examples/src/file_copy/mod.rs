//! Copies files and directories to another process over `rdma_net`.
//!
//! The sender reads a file directly into the registered send buffers of its connection, and the
//! receiver writes it directly from the receive buffers: no process copies a byte of a file
//! ([`rdma_net::Permit::payload_mut`], [`rdma_net::Message`]).
//!
//! A file is written in a folder of unfinished files, which no path of a sender leads to, and gets
//! its place once all of it has come and its checksum is right. What an interrupted copy leaves is
//! used by the next one: the receiver says how much it has and the checksum of that, and the sender
//! goes on from there if its file begins with the same bytes. A file that is there already is not
//! sent again.
//!
//! A file and a directory get the permissions of the source, a directory after its contents; until
//! then only the receiver's user can use them. Set-user-ID, set-group-ID and sticky bits, owners
//! and times are not copied.
//!
//! The sender names the next files ([`IN_FLIGHT`]) while it sends one, so that small files do not
//! wait for answers.

mod receiver;
mod sender;
mod wire;

use std::ffi::OsStr;
use std::path::Path;

use rdma_net::NodeOptions;

pub use receiver::Receiver;
pub use sender::{Summary, send};

use crate::files::tree::UNFINISHED;
use rdma_collectives::text::escaped;

/// The port of a receiver.
pub const PORT: u16 = 7176;
/// Bytes of a file in one message.
const CHUNK: usize = 256 << 10;
/// Messages on their way.
const WINDOW: u16 = 8;
/// Senders that a receiver serves at the same time.
pub const MAX_SENDERS: u32 = 32;
/// Files that are named before the first of them is finished. The receiver answers each twice, and
/// the sender reads the answers between two files: all of them fit the window, so that neither
/// waits for the other to read.
pub const IN_FLIGHT: usize = 3;

/// Options of a sender's node, and of a receiver's for up to `connections` senders.
pub fn node_options(connections: u32) -> NodeOptions {
    let payload = u32::try_from(CHUNK + wire::DATA_HEADER).unwrap_or(u32::MAX);
    NodeOptions::new().window(WINDOW).payload(payload).max_message(payload).max_connections(connections)
}

/// The sentence that a path of [`Summary::skipped`] was not copied, and why.
#[must_use]
pub fn not_copied(path: &Path) -> String {
    let why = if path.file_name() == Some(OsStr::new(UNFINISHED)) {
        "its name is kept for folders of unfinished files"
    } else {
        "it is neither a file nor a directory"
    };
    format!("{} was not copied: {why}", escaped(path))
}
