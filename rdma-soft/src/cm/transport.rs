//! The transports of a connection: a socket to a process of this host, or packets over TCP to one
//! of another host; and the calls that make the latter.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::wire::Message;
use crate::engine::Errno;
use crate::link::packets::Packets;
use crate::link::port::{self, Space};
use crate::os;
use crate::os::socket::{Received, Socket};

/// A connected transport.
#[derive(Debug)]
pub(super) enum Transport {
    /// To a process of this host. The kernel reports the other side's name.
    Near(Socket),
    /// To a process of another host, which has proved that it holds the key.
    Far(Box<Far>),
}

/// A connection to another host.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) packets: Packets,
    /// The address of the other side, and this side's.
    pub(super) peer: IpAddr,
    pub(super) local: IpAddr,
    /// The socket with the name of an id that has connected, which keeps the id's port.
    pub(super) name: Option<Socket>,
}

/// What a transport tells of the other side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A process of this host with a name; no address for a wildcard. `None` without such a name.
    Near(Option<(Space, u16, Option<IpAddr>)>),
    /// The address of another host, and the address of this host to which it has connected.
    Far { peer: IpAddr, local: IpAddr },
}

/// Why a request did not reach a listener.
#[derive(Debug)]
pub(super) enum Undelivered {
    /// No process listens at the address.
    Refused,
    /// A process of another user listens at the address.
    OtherUser,
    /// The request is lost; the machine repeats it.
    Lost,
}

impl<E: Into<Errno>> From<E> for Undelivered {
    fn from(_: E) -> Self {
        Self::Lost
    }
}

/// A call to the listener of an id's peer.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) key: u64,
    pub(super) space: Space,
    pub(super) peer: SocketAddr,
    /// Sent over the new connection.
    pub(super) request: Message,
}

/// The calls to other hosts.
#[derive(Debug, Default)]
pub(super) struct Dialler {
    pub(super) threads: usize,
    pub(super) waiting: VecDeque<Call>,
}

impl Transport {
    /// Sends a whole packet; `EAGAIN` if the other side does not read.
    pub(super) fn send(&mut self, packet: &[u8]) -> os::Result<()> {
        match self {
            Self::Near(socket) => socket.send(packet),
            Self::Far(far) => far.packets.send(packet),
        }
    }

    /// Receives a packet; `EAGAIN` if there is none.
    pub(super) fn receive(&mut self) -> os::Result<Received> {
        match self {
            Self::Near(socket) => socket.receive(),
            Self::Far(far) => far.packets.receive(),
        }
    }

    /// Receives the first packet, in which another process of this host may pass a call on.
    pub(super) fn receive_first(&mut self) -> os::Result<Received> {
        match self {
            Self::Near(socket) => socket.receive_with_fds(),
            Self::Far(far) => far.packets.receive(),
        }
    }

    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Near(socket) => Origin::Near(socket.peer_name().and_then(|name| port::parse(&name))),
            Self::Far(far) => Origin::Far { peer: far.peer, local: far.local },
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Near(socket) => socket.as_fd(),
            Self::Far(far) => far.packets.as_fd(),
        }
    }
}
