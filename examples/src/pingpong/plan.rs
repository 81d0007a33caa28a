//! The parameters of queue pairs and their traffic: depths, memory, and the flow control of sends.

use rdma::transport::Transport;
use rdma::{Capabilities, Grh, PreparedQueuePair, QpBuilder, RemoteAccess, TransportType};

use super::options::{AtomicType, Connection, Op, Options, Test};
use crate::wait::Completions;

/// Largest message that latency tests send inline, if the device allows it.
const INLINE: u32 = 220;
/// The same limit on iWARP, whose devices refuse queue pairs with more inline space than they have.
const IWARP_INLINE: u32 = 64;
/// Largest inline size that may be requested.
pub(super) const MOST_INLINE: u32 = 1024;
/// Most bytes of memory for messages in flight, approximately.
const MEMORY: usize = 32 << 20;
/// Most permissions in flight to a queue pair at a time, besides messages; each has a receive.
pub(super) const PERMISSIONS: u32 = 2;
/// Parameters of the queue pairs and of their traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) atomic_type: AtomicType,
    pub(super) check: bool,
    pub(super) size: usize,
    pub(super) lanes: usize,
    /// Send queue and receive queue depths of a queue pair.
    pub(super) sends: u32,
    pub(super) receives: u32,
    /// Most messages in flight on a queue pair.
    pub(super) depth: u32,
    /// One of so many messages has a completion; at most the depth, or none of those in flight may
    /// have one.
    pub(super) moderation: u32,
    pub(super) inline: u32,
    pub(super) connection: Connection,
    pub(super) capabilities: Capabilities,
}

impl Plan {
    pub(super) fn new(options: &Options, test: Test, size: usize, capabilities: Capabilities) -> Self {
        let lanes = if test == Test::Lat { 1 } else { usize::from(options.qp) };
        let in_memory = u32::try_from((MEMORY / size / lanes).clamp(2, 1 << 14)).unwrap_or(2);
        let depth = options.tx_depth.min(in_memory).min(options.outs.unwrap_or(u32::MAX));
        let usual = match test {
            Test::Lat if capabilities.transport == TransportType::IWARP => IWARP_INLINE,
            Test::Lat => INLINE,
            _ => 0,
        };
        Self {
            op: options.op,
            atomic_type: options.atomic_type,
            check: options.check,
            size,
            lanes,
            // On iWARP a notice follows each write, and permissions are sent between messages.
            sends: 2 * depth + 2,
            receives: options.rx_depth.min(2 * in_memory) + PERMISSIONS,
            depth,
            moderation: if test == Test::Lat || options.op == Op::Atomic { 1 } else { options.cq_mod.min(depth) },
            inline: options.inline_size.unwrap_or(usual),
            connection: options.connection,
            capabilities,
        }
    }

    /// Whether the receiver grants permission to send more, because the transport does not make a
    /// sender wait for receives.
    pub(super) fn is_by_permission(&self) -> bool {
        self.op == Op::Send && (self.connection != Connection::Rc || !self.capabilities.waits_for_receives)
    }

    /// Number of messages that one permission grants.
    pub(super) fn permission(&self) -> u64 {
        u64::from((self.receives - PERMISSIONS) / 2)
    }

    /// Bytes of memory of each receive.
    pub(super) fn room(&self) -> Option<usize> {
        match self.op {
            Op::Send if self.connection == Connection::Ud => Some(Grh::LEN + self.size),
            Op::Send => Some(self.size),
            // Only notices of writes arrive, which have no bytes; but siw refuses receives without
            // memory.
            _ => (!self.capabilities.write_with_immediate).then_some(1),
        }
    }

    /// Number of send buffers, and their length.
    pub(super) fn spares(&self) -> (u32, usize) {
        match self.op {
            // The kernel's siw completes requests before TCP has read their data. With this many
            // buffers, used in turn, none is needed again before its message has arrived: the
            // receiver permits fewer messages ahead.
            Op::Send if !self.capabilities.acknowledged => (self.depth + self.receives, self.size),
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
