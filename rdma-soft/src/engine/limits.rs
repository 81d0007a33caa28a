//! Limits of the engine; `ibv_query_device` reports most of them.

/// Most entries of a gather or scatter list.
pub(crate) const MAX_SGE: usize = 16;
/// Largest depth of a send or receive queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 15;
/// Most bytes of inline data in a request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Largest depth of a completion queue.
pub(crate) const MAX_CQE: u32 = 1 << 22;
/// Most bytes of a message.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Most reads and atomics in flight on a queue pair, in each role.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;
/// Most regions of one engine.
pub(crate) const MAX_MR: u32 = 1 << 20;
/// Most bytes of one allocation of device memory.
pub(crate) const MAX_DM: usize = 1 << 20;
/// Most completion queues of one engine.
pub(crate) const MAX_CQ: u32 = 1 << 16;
/// Most shared receive queues of one engine.
pub(crate) const MAX_SRQ: u32 = 1 << 16;
/// Largest depth of a shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// Most protection domains of one engine.
pub(crate) const MAX_PD: u32 = 1 << 16;
/// Queue pair numbers under one slot.
pub(crate) const QPS_PER_SLOT: u32 = 1 << 12;
/// Most bytes of a datagram: the port's MTU.
pub(crate) const MTU: u32 = 4096;
/// Most address handles of one process.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Most multicast groups that a process may be in.
pub(crate) const MAX_GROUPS: u32 = 256;
/// Most queue pairs of a process in one group.
pub(crate) const MAX_GROUP_QPS: u32 = 1 << 10;
/// Most attachments of a process: of all its queue pairs to all groups.
pub(crate) const MAX_ATTACHMENTS: u32 = 1 << 12;
/// Bytes, approximately, that one call may copy before it lets others run.
pub(crate) const COPY_BUDGET: usize = 1 << 20;
/// The smallest payload limit of a link: every link takes so many bytes in one frame.
pub(crate) const SHORTEST_LIMIT: u32 = 256;
