//! The queue pair of a connection, with the id or socket that connected it.
//!
//! A request's token has the number of the connection in its lower half and an operation number in
//! its upper half: 0 for messages.

use std::any::Any;

use rdma::cm::Id;
use rdma::op;
use rdma::transport::Rc;
use rdma::{Error, Failed, QueuePair, Result};

use super::receives::Stake;
use super::tcp;

/// Reads of offers that may be in flight at a time. The send queue has slots for them.
pub(super) const MAX_READS: u32 = 4;
/// The operation number of a read of an offer has this bit; others have not.
pub(super) const READ_BIT: u32 = 1 << 31;
/// The operation number of the last send of a connection with shared receives.
pub(super) const DRAINED: u32 = u32::MAX - 1;

/// The queue pair and the id of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) end: LinkEnd,
    pub(super) qp: QueuePair<Rc>,
}

impl Link {
    /// Ends the connection; requests in flight are flushed. With a stake, a last send tells when
    /// all messages that took shared receives have completed.
    pub(super) fn disconnect(self, key: u32, stake: Option<Stake>) -> Option<Draining> {
        if let Err(error) = self.end.disconnect(&self.qp) {
            tracing::debug!(
                name: "disconnect_failed", target: "rdma_net",
                %error, "a connection that has ended could not be disconnected"
            );
        }
        let mut draining = Draining { link: self, stake: stake? };
        // On iWARP a send after the end may never complete; the end flushes the receives itself.
        let may_post = draining.link.qp.context().capabilities().manual_connect;
        let token = u64::from(DRAINED) << 32 | u64::from(key);
        let is_posted = may_post && draining.link.qp.post_send(op::send(()).token(token)).is_ok();
        is_posted.then_some(draining)
    }
}

/// What a failure to connect leaves: ids, sockets and queue pairs, whose drops may log.
pub(super) type Remains = Box<dyn Any>;

/// A failure to connect that leaves these objects.
pub(super) fn failed(error: Error, remains: impl Any) -> Failed<Remains> {
    Failed::new(error, Box::new(remains))
}

/// The id or the socket of an established connection.
#[derive(Debug)]
pub(super) enum LinkEnd {
    Manager(Id<Rc>),
    Tcp(tcp::End),
}

impl LinkEnd {
    /// Ends the connection of the queue pair; the socket tells the peer when it is dropped.
    fn disconnect(&self, qp: &QueuePair<Rc>) -> Result<()> {
        match self {
            Self::Manager(id) => id.disconnect(qp),
            Self::Tcp(end) => {
                qp.set_error()?;
                end.shut_down();
                Ok(())
            }
        }
    }
}

/// A queue pair in the error state whose shared receives may still complete.
#[derive(Debug)]
pub(super) struct Draining {
    /// Dropped first: the peer may use the stake's receives until the queue pair is destroyed.
    link: Link,
    pub(super) stake: Stake,
}
