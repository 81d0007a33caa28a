//! What the engine can hold: `ibv_query_device` reports these.

/// Entries of a gather or scatter list.
pub(crate) const MAX_SGE: usize = 16;
/// Depth of a send or receive queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 15;
/// Bytes of inline data in a request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Depth of a completion queue.
pub(crate) const MAX_CQE: u32 = 1 << 22;
/// Bytes of a message.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Reads and atomics in flight on a queue pair, in each role.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;
/// Regions of one engine.
pub(crate) const MAX_MR: u32 = 1 << 20;
/// Completion queues of one engine.
pub(crate) const MAX_CQ: u32 = 1 << 16;
/// Protection domains of one engine.
pub(crate) const MAX_PD: u32 = 1 << 16;
/// Queue pairs under one slot.
pub(crate) const QPS_PER_SLOT: u32 = 1 << 12;
/// Bytes of a datagram: the port's MTU.
pub(crate) const MTU: u32 = 4096;
/// Address handles of one process.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Multicast groups that a process may be in.
pub(crate) const MAX_GROUPS: u32 = 256;
/// Queue pairs of a process in one group.
pub(crate) const MAX_GROUP_QPS: u32 = 1 << 10;
/// Attachments of a process, of all queue pairs to all groups.
pub(crate) const MAX_ATTACHMENTS: u32 = 1 << 12;
/// The most bytes, about, that one call copies before it lets others run.
pub(crate) const COPY_BUDGET: usize = 1 << 20;
/// Every link takes a payload of so many bytes in one frame.
pub(crate) const SHORTEST_LIMIT: u32 = 256;
