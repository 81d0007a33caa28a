//! The end of a node: what is under way ends by itself in some time, and is cut off then.

use std::net::SocketAddr;
use std::task::Waker;
use std::time::Instant;

use super::waiters::Waiters;

/// A connection that a [shutdown](super::Node::shutdown) has cut off: its peer had not ended its
/// data in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutOff {
    /// The peer's address.
    pub peer_addr: Option<SocketAddr>,
}

/// A shutdown that is under way or complete.
#[derive(Debug)]
pub(super) struct Shutdown {
    /// The time at which connections are cut off.
    pub(super) by: Instant,
    pub(super) cut_off: Vec<CutOff>,
    /// Tasks that wait for the end of the last connection.
    pub(super) waiters: Waiters,
}

impl Shutdown {
    pub(super) fn new(by: Instant) -> Self {
        Self { by, cut_off: Vec::new(), waiters: Waiters::default() }
    }

    /// The tasks to wake once no connection is left.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.waiters.take_all().collect()
    }
}
