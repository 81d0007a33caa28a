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
//! A copy keeps what `rsync -aHS` keeps: permissions, times of modification, symbolic links, hard
//! links, holes, and owners if the receiver is root. Holes are neither sent, nor written, nor read
//! for a checksum. A directory gets its attributes after its contents; until then only the
//! receiver's user can use it. What is not kept is said (`files/omitted.rs`).
//! Set-user-ID and set-group-ID bits are not copied: a receiver does not know its senders.
//!
//! No entry is written through a symbolic link, wherever that points and whoever has made it
//! (`files/tree.rs`).
//!
//! The sender names the next files ([`IN_FLIGHT`]) while it sends one, so that small files do not
//! wait for answers.

mod receiver;
mod sender;
mod wire;

use rdma_net::NodeOptions;

pub use receiver::Receiver;
pub use sender::{Summary, send};

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

/// The paragraphs of `--help` about what a copy keeps, and about exit statuses.
pub const HELP: &str = "\
Of what `rsync -aHS` keeps, a copy keeps: bytes of names, contents, permissions, times of
modification, symbolic links, hard links among what is sent, holes, and owners (by number) if
the receiver runs as root.
It does not keep: owners otherwise; set-user-ID, set-group-ID and sticky bits; access control
lists; extended attributes; file flags; times of access; preallocated space.
It does not copy: FIFOs; sockets; block and character devices; folders .file_copy-unfinished;
files and directories that the sender may not read, or that do not exist (any more).
The sender copies the rest, and names what it left out on standard error, in one line for each kind.

Exit status: 0 success, also without some attributes; 1 failure, or nothing could be copied;
2 invalid arguments; 23 success, as of rsync, but some things were not copied, or have another
time of modification.
--log debug shows more on standard error.";

/// Options of a sender's node, and of a receiver's for up to `connections` senders.
pub fn node_options(connections: u32) -> NodeOptions {
    let payload = u32::try_from(CHUNK + wire::DATA_HEADER).unwrap_or(u32::MAX);
    NodeOptions::new().window(WINDOW).payload(payload).max_message(payload).max_connections(connections)
}
