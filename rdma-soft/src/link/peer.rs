//! The process at the other side of a link.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdma_mem::Mapping;

use super::wire::{self, Body, Kind};
use crate::engine::Slot;
use crate::os::bell::Bell;
use crate::os::{self, process, socket::Socket};

/// A process that has a link to this one.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The peer's process id in this pid namespace.
    pub(crate) pid: i32,
    /// The peer's slots, each confirmed by the kernel.
    pub(crate) slots: Vec<Slot>,
    /// The socket of the handshake. The socket carries regions, and hangs up when the peer dies.
    pub(crate) socket: Socket,
    /// Wakes the peer.
    pub(crate) bell: Bell,
    /// Wakes this process.
    pub(crate) our_bell: Bell,
    /// Becomes readable when the peer dies, even if a child of the peer keeps the socket open.
    pub(crate) pidfd: OwnedFd,
    /// The directory in which the peer publishes its regions and queue pairs.
    pub(crate) directory: Arc<Mapping>,
}

impl Peer {
    /// Wakes the peer. Never blocks, whatever the peer does with its bell or its end of the socket:
    /// the bell is an eventfd (`os/bell.rs`); this process made the AF_UNIX socket, no other
    /// process has its descriptor, and a send to a full socket fails.
    pub(crate) fn ring(&self) {
        if self.bell.ring() {
            return;
        }
        // A full socket means that the peer has hundreds of unread doorbells, so one more is not
        // needed.
        let _full: os::Result<()> = self.socket.send(&wire::DOORBELL);
    }

    /// Sends a region's description, and the file that holds it.
    pub(crate) fn send_region(&self, description: &Body, file: BorrowedFd<'_>) -> os::Result<()> {
        wire::send(&self.socket, Kind::Grant, description, &[file])
    }

    /// Whether the process has died.
    pub(crate) fn has_died(&self) -> bool {
        process::has_died(&self.pidfd)
    }

    /// A peer that is rung on the returned socket.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn on_a_socket() -> (Self, Socket) {
        let [socket, theirs] = Socket::pair();
        let pid = i32::try_from(std::process::id()).unwrap();
        let (directory, _) = Mapping::create(4096).unwrap();
        let (bell, our_bell) = (Bell::spoilt(), Bell::new().unwrap());
        let pidfd = process::open_pidfd(pid).unwrap();
        (Self { pid, slots: Vec::new(), socket, bell, our_bell, pidfd, directory: Arc::new(directory) }, theirs)
    }
}
