//! Queue pairs that carry no data: any number of them, on as few completion queues as possible.

use rdma::transport::Rc;
use rdma::{CompletionQueue, Context, Error, ErrorKind, PreparedQueuePair, ProtectionDomain, QueuePair, Result};

/// Entries of each completion queue.
const ENTRIES: u32 = 256;

/// The source of queue pairs.
#[derive(Debug)]
pub(super) struct Pool {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Pool {
    pub(super) fn new(context: &Context) -> Result<Self> {
        Ok(Self { context: context.clone(), pd: context.alloc_pd()?, cq: context.create_cq(ENTRIES)? })
    }

    /// Creates a queue pair of the smallest size.
    pub(super) fn queue_pair(&mut self) -> Result<PreparedQueuePair<Rc>> {
        match self.build() {
            Err(error) if matches!(error.kind(), ErrorKind::CompletionQueueTooSmall { .. }) => {
                // The current CQ is full; its queue pairs keep it alive.
                self.cq = self.context.create_cq(ENTRIES)?;
                self.build()
            }
            built => built,
        }
    }

    fn build(&self) -> Result<PreparedQueuePair<Rc>, Error> {
        QueuePair::<Rc>::builder(&self.pd).cq(&self.cq).max_send_wr(1).max_recv_wr(1).build()
    }
}
