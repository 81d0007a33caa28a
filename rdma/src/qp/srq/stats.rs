//! What a shared receive queue has done.
//!
//! A post counts nothing: the number of receives follows from the ring's list of free slots, and
//! the number in flight from the slots. The device does not tell which receives a message has taken
//! before their completions come, so the queue cannot tell either.

use super::SharedReceiveQueue;
use crate::qp::posting::Refused;
use crate::transport::Transport;

/// What a shared receive queue has done since this handle was made:
/// [`SharedReceiveQueue::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqStats {
    /// Receives that were posted. Only grows.
    pub posted: u64,
    /// Posts that were refused, with the receive's memory. Only grows.
    pub refused: u64,
    /// The refused posts that found the queue full. Only grows.
    pub refused_full: u64,
    /// Receives that have ended: their completions were polled, from whichever completion queue.
    /// Only grows.
    pub received: u64,
    /// Receives whose completion has not been polled: some wait for a message, others have one. 0
    /// means that the next message finds no receive. Goes up and down, and may be more than
    /// [`SharedReceiveQueue::depth`] while completions wait to be polled.
    pub in_flight: u32,
    /// The most receives that were in flight when the queue looked: each time its list of free
    /// slots has run out, which is once in about as many posts as its depth. A high-water mark: far
    /// below the depth, the program posts again too late, or too few.
    pub most_in_flight: u32,
}

/// What the data path has done otherwise than to post what it took a slot for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Slots that were taken and not posted.
    pub(super) skipped: u64,
    /// The slots of the batch that is staged.
    pub(super) staged: u32,
    pub(super) refused: Refused,
}

impl Counts {
    /// Counts the slots of a batch that is not posted.
    pub(super) fn skip_staged(&mut self) {
        self.skipped += u64::from(std::mem::take(&mut self.staged));
    }
}

impl<T: Transport> SharedReceiveQueue<T> {
    /// What the queue has done since this handle was made. The call looks at each slot of the
    /// queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut receives = rdma::SharedReceiveQueue::builder(&pd).max_wr(16).build()?;
    /// for token in 0..10 {
    ///     receives.post_recv(pd.allocate(64)?, token)?;
    /// }
    /// // Messages to any of the queue pairs that use the queue take them.
    /// let stats = receives.stats();
    /// assert_eq!((stats.posted, stats.in_flight, stats.received), (10, 10, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> SrqStats {
        let Some(held) = &self.held else { return SrqStats::default() };
        let count = |slots: usize| u32::try_from(slots).unwrap_or(u32::MAX);
        // Before the slots: completions that are polled meanwhile only add to `received`.
        let posted = held.producer.taken() - self.counts.skipped - u64::from(self.counts.staged);
        let in_flight = count(held.producer.parked());
        let Refused { all: refused, full: refused_full } = self.counts.refused;
        let received = posted.saturating_sub(in_flight.into());
        let most_in_flight = count(held.producer.most_busy());
        SrqStats { posted, refused, refused_full, received, in_flight, most_in_flight }
    }
}
