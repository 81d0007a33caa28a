//! What the queues of a queue pair have done.
//!
//! The data path pays one addition for each send. The number of requests follows from the position
//! of a ring's head, which a post moves in any case, and the number in flight from the ring's
//! slots. What the device does with a request (retries, waits for the peer's receives) it counts
//! for a whole port, if at all: [`Context::port_counters`](crate::Context::port_counters).

use super::QueuePair;
use super::posting::Refused;
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::Transport;

/// What a queue pair has done since its creation: [`QueuePair::stats`].
///
/// All counters start at 0 with the queue pair, and go on when it is reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStats {
    /// The send queue.
    pub send: SendStats,
    /// The receive queue; all 0 if the queue pair takes its receives from a shared receive queue,
    /// which has [`SrqStats`](crate::SrqStats).
    pub recv: RecvStats,
}

/// What a send queue has done: [`SendQueue::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Requests that were posted: sends, writes, reads and atomics. Only grows.
    pub posted: u64,
    /// Bytes of these requests: what they send or write, or ask for. Only grows.
    pub posted_bytes: u64,
    /// Posts that were refused, with the request's memory. Only grows.
    pub refused: u64,
    /// The refused posts that found the queue full. Only grows.
    pub refused_full: u64,
    /// Requests whose completion has not been polled. Unsignaled requests end with the next
    /// signaled one. Goes up and down, between 0 and [`SendQueue::depth`].
    pub in_flight: u32,
}

/// What a receive queue has done: [`RecvQueue::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvStats {
    /// Receives that were posted. Only grows.
    pub posted: u64,
    /// Posts that were refused, with the receive's memory. Only grows.
    pub refused: u64,
    /// The refused posts that found the queue full. Only grows.
    pub refused_full: u64,
    /// Receives whose completion has not been polled. 0 means that the next message finds no
    /// receive. Goes up and down, between 0 and [`RecvQueue::depth`].
    pub in_flight: u32,
}

impl<T: Transport> QueuePair<T> {
    /// What the queue pair has done since its creation. The call looks at each slot of its queues.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
    /// b.post_recv(pd.allocate(64)?, 0)?;
    /// a.post_send(rdma::op::send(pd.allocate(10)?))?;
    /// let stats = a.stats().send;
    /// assert_eq!((stats.posted, stats.posted_bytes, stats.in_flight), (1, 10, 1));
    /// // Polling the completions of the send and of the receive ends both requests.
    /// for _ in 0..2 {
    ///     poller.wait(None)?.expect("no time limit").status()?;
    /// }
    /// # drop(poller);
    /// assert_eq!((a.stats().send.in_flight, b.stats().recv.in_flight), (0, 0));
    /// assert_eq!(b.stats().recv.posted, 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> QpStats {
        QpStats { send: self.send.stats(), recv: self.recv.stats() }
    }
}

impl SendQueue {
    /// What the queue has done since its creation. The call looks at each slot of the queue.
    #[must_use]
    pub fn stats(&self) -> SendStats {
        let (posted, in_flight) = self.half.requests();
        let Refused { all: refused, full: refused_full } = self.half.refused;
        SendStats { posted, posted_bytes: self.bytes, refused, refused_full, in_flight }
    }
}

impl RecvQueue {
    /// What the queue has done since its creation. The call looks at each slot of the queue.
    #[must_use]
    pub fn stats(&self) -> RecvStats {
        let (posted, in_flight) = self.half.requests();
        let Refused { all: refused, full: refused_full } = self.half.refused;
        RecvStats { posted, refused, refused_full, in_flight }
    }
}
