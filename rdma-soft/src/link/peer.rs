//! The process at the other end of a link.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdma_mem::Mapping;

use super::packet::{self, Body, Kind};
use crate::engine::Slot;
use crate::os::{self, process, socket::Socket};

/// A process that this one has a link to.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its process id in this namespace.
    pub(crate) pid: i32,
    /// The slots that the kernel confirms it has.
    pub(crate) slots: Vec<Slot>,
    /// The socket of the handshake. It carries doorbells and regions, and hangs up when the peer
    /// dies.
    pub(crate) socket: Socket,
    /// Becomes readable when the peer dies, also if a child of its keeps the socket.
    pub(crate) pidfd: OwnedFd,
    /// Where it publishes its regions and queue pairs.
    pub(crate) directory: Arc<Mapping>,
}

impl Peer {
    /// Wakes the peer. Never waits, whatever the peer does with its end: the socket is an AF_UNIX
    /// socket that this process made, no other process has its descriptor, and a send to a full
    /// socket fails.
    pub(crate) fn ring(&self) {
        // A socket is full while the peer has hundreds of doorbells to look at.
        let _full: os::Result<()> = self.socket.send(&packet::DOORBELL);
    }

    /// Sends a region's description, and the file that holds it.
    pub(crate) fn send_region(&self, description: &Body, file: BorrowedFd<'_>) -> os::Result<()> {
        packet::send(&self.socket, Kind::Grant, description, &[file])
    }

    /// Whether the process has died.
    pub(crate) fn has_died(&self) -> bool {
        process::has_died(&self.pidfd)
    }
}
