//! What queue pairs and their traffic depend on: depths, memory, and how a sender is held back.

use rdma::{Grh, PreparedQueuePair, QpBuilder, RemoteAccess, Transport};

use super::options::{self, AtomicType, Op, Options, Test};
use crate::wait::Completions;

/// Largest message that latency tests copy into their requests, where the device can.
const INLINE: u32 = 220;
/// The same on iWARP, whose devices refuse queue pairs with more inline space than their limit.
const IWARP_INLINE: u32 = 64;
/// Longest message that may be asked to be copied.
pub(super) const MOST_INLINE: u32 = 1024;
/// Messages under way hold at most about this much memory.
const MEMORY: usize = 32 << 20;
/// Permissions to send more that may be under way to a queue pair, beside messages; there is a
/// receive for each.
pub(super) const PERMISSIONS: u32 = 2;
/// Parameters of the queue pairs and of their traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) atomic_type: AtomicType,
    pub(super) check: bool,
    pub(super) size: usize,
    pub(super) lanes: usize,
    /// Requests and receives of a queue pair.
    pub(super) sends: u32,
    pub(super) receives: u32,
    /// Messages under way at once on a queue pair.
    pub(super) depth: u32,
    pub(super) inline: u32,
    pub(super) is_datagram: bool,
    pub(super) is_iwarp: bool,
}

impl Plan {
    pub(super) fn new(options: &Options, test: Test, size: usize, is_iwarp: bool) -> Self {
        let lanes = if test == Test::Lat { 1 } else { usize::from(options.qp) };
        let in_memory = u32::try_from((MEMORY / size / lanes).clamp(2, 1 << 14)).unwrap_or(2);
        let depth = options.tx_depth.min(in_memory);
        let usual = match test {
            Test::Lat if is_iwarp => IWARP_INLINE,
            Test::Lat => INLINE,
            _ => 0,
        };
        Self {
            op: options.op,
            atomic_type: options.atomic_type,
            check: options.check,
            size,
            lanes,
            // On iWARP a message follows each write that is told, and permissions go between
            // messages.
            sends: 2 * depth + 2,
            receives: options.rx_depth.min(2 * in_memory) + PERMISSIONS,
            depth,
            inline: options.inline_size.unwrap_or(usual),
            is_datagram: options.connection == options::Connection::Ud,
            is_iwarp,
        }
    }

    /// Whether the receiver says when more may be sent, because nothing else makes a sender wait
    /// for receives.
    pub(super) fn is_by_permission(&self) -> bool {
        self.op == Op::Send && (self.is_iwarp || self.is_datagram)
    }

    /// Messages that one permission stands for.
    pub(super) fn permission(&self) -> u64 {
        u64::from((self.receives - PERMISSIONS) / 2)
    }

    /// The memory of each receive.
    pub(super) fn room(&self) -> Option<usize> {
        match self.op {
            Op::Send if self.is_datagram => Some(Grh::LEN + self.size),
            Op::Send => Some(self.size),
            // Only word of writes comes, which has no bytes; but siw refuses receives without
            // memory.
            _ => self.is_iwarp.then_some(1),
        }
    }

    /// Buffers to send from, and their length.
    pub(super) fn spares(&self) -> (u32, usize) {
        match self.op {
            // The kernel's siw completes requests whose data TCP has yet to look at. Taken in turn,
            // none of so many buffers is needed again before its message has come: no more than
            // that are permitted ahead.
            Op::Send if self.is_iwarp => (self.depth + self.receives, self.size),
            Op::Send | Op::Atomic => (self.depth, self.size),
            Op::Write | Op::Read => (0, 0),
        }
    }

    pub(super) fn build<T: Transport>(
        &self,
        builder: QpBuilder<T>,
        completions: &Completions,
    ) -> Result<PreparedQueuePair<T>, rdma::Error> {
        let builder = builder.cq(completions.queue()).max_send_wr(self.sends).max_recv_wr(self.receives);
        builder.max_inline_data(self.inline).build()
    }

    pub(super) fn access(&self) -> RemoteAccess {
        let atomic = if self.op == Op::Atomic { RemoteAccess::ATOMIC } else { RemoteAccess::empty() };
        RemoteAccess::READ | RemoteAccess::WRITE | atomic
    }
}
