//! Packets on the socket between two processes.
//!
//! ```text
//! magic 8 | version 4 | kind 4 | body
//! ```
//!
//! Numbers are in the host's byte order: both sides are on one host. Magic, version and kind have
//! the same offsets in all versions.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use crate::os;
use crate::os::socket::{self, Received, Socket};

/// Version of the protocol between two processes. Increment the version with every change of a
/// packet, a frame, the rings or the directory.
pub(crate) const VERSION: u32 = 11;
const MAGIC: u64 = u64::from_be_bytes(*b"RDMAsoft");
/// Length of the magic, version and kind, which precede the body.
const HEAD: usize = 16;

/// The purpose of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// The sender's slots and the address of its token; the acceptor's Hello also has the opener's
    /// token.
    Hello = 1,
    /// The opener's proof (the acceptor's token), the link's memory, the opener's directory and the
    /// opener's bell.
    Offer = 2,
    /// The acceptor's directory and bell: the link is up.
    Accept = 3,
    /// The sender refuses the link; the body is the reason.
    Refuse = 4,
    /// A region that the peer may map.
    Grant = 5,
    /// Wakes the peer, if its bell cannot be rung.
    Doorbell = 6,
    /// A link between the two processes exists already; the body has the sender's slots.
    Known = 7,
    /// Another handshake between the two processes is under way.
    Busy = 8,
    /// A connection of a process of another host, its first message (`hello`), and the
    /// milliseconds that it has left for its proof: the receiver goes on with it, and hangs up
    /// once it counts the connection itself.
    Caller = 9,
    /// The socket at which the sender listens for other hosts (`share`).
    Listener = 10,
}

/// A packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// A [`Kind`], or any other number that the peer sent.
    pub(crate) kind: u32,
    /// The sender's version.
    pub(crate) version: u32,
    /// The contents after the head.
    pub(crate) body: Body,
    /// The descriptors that came with the packet.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Why no packet was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// The socket failed.
    #[error(transparent)]
    System(#[from] os::Error),
    /// The peer closed its end of the socket.
    #[error("the peer hung up")]
    HungUp,
    /// The bytes are not a packet, or not the expected packet.
    #[error("{0}")]
    Malformed(&'static str),
}

impl Error {
    /// Whether the socket was only empty, so that a packet may still come.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::System(os::Error { errno: Errno::EAGAIN, .. }))
    }
}

/// A packet's contents, appended at the end and read from the front.
#[derive(Debug, Default)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    read: usize,
}

impl Body {
    /// Appends bytes.
    #[must_use]
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends a number.
    #[must_use]
    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Takes `N` bytes.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.bytes[self.read..].first_chunk().copied();
        self.read += if taken.is_some() { N } else { 0 };
        taken.ok_or(Error::Malformed("a packet of the peer is too short"))
    }

    /// Takes a number.
    pub(crate) fn take_u64(&mut self) -> Result<u64, Error> {
        self.take().map(u64::from_ne_bytes)
    }

    /// The bytes that are not read yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.read..]
    }
}

const fn head(version: u32, kind: Kind) -> [u8; HEAD] {
    let (magic, version, kind) = (MAGIC.to_ne_bytes(), version.to_ne_bytes(), (kind as u32).to_ne_bytes());
    let mut head = [0; HEAD];
    let mut at = 0;
    while at < HEAD {
        head[at] = if at < 8 {
            magic[at]
        } else if at < 12 {
            version[at - 8]
        } else {
            kind[at - 12]
        };
        at += 1;
    }
    head
}

/// A packet that wakes the peer.
pub(crate) const DOORBELL: [u8; HEAD] = head(VERSION, Kind::Doorbell);

/// Sends a packet.
pub(crate) fn send(socket: &Socket, kind: Kind, body: &Body, fds: &[BorrowedFd<'_>]) -> os::Result<()> {
    send_as(socket, VERSION, kind, body, fds)
}

/// Sends a packet with any version in its head.
pub(crate) fn send_as(
    socket: &Socket,
    version: u32,
    kind: Kind,
    body: &Body,
    fds: &[BorrowedFd<'_>],
) -> os::Result<()> {
    let packet = Body::default().bytes(&head(version, kind)).bytes(&body.bytes);
    socket.send_with(&packet.bytes, fds)
}

/// Receives a packet; `EAGAIN` if none is waiting.
pub(crate) fn receive(socket: &Socket) -> Result<Packet, Error> {
    match socket.receive_with_fds()? {
        Received::Packet(packet) => decode(packet),
        Received::TooLong => Err(Error::Malformed("a packet of the peer is too long")),
        Received::End => Err(Error::HungUp),
    }
}

/// Reads a packet that has been received.
pub(crate) fn decode(packet: socket::Packet) -> Result<Packet, Error> {
    let mut body = Body { bytes: packet.bytes, read: 0 };
    if body.take_u64()? != MAGIC {
        return Err(Error::Malformed("the peer is not a software RDMA device"));
    }
    let version = u32::from_ne_bytes(body.take()?);
    let kind = u32::from_ne_bytes(body.take()?);
    Ok(Packet { kind, version, body, fds: packet.fds })
}
