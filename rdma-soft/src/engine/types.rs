//! Names and values that cross the engine's boundary.

use std::sync::Arc;

use bitflags::bitflags;
use rdma_mem::Backing;
use rdma_sys::{ibv_event_type, ibv_qp_state, ibv_sge, ibv_wc_opcode};

use super::grh::{Gid, Grh};
use super::memory::Source;

/// A point in time: nanoseconds from an origin that the caller chooses. Time never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(pub(crate) u64);

impl Time {
    /// Returns the point in time `nanos` nanoseconds later; saturates.
    pub(crate) const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// An error number as verbs reports it (`EINVAL`, `ENOMEM` ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// Invalid argument, or a call that the object's state does not allow.
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    /// A queue or a table is full.
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    /// Something still uses the object.
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// A copy of foreign memory is running: call again after the next `handle_copied`.
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    /// Returns the error for the caller of a verb that has waited for a copy in vain.
    pub(crate) fn after_waiting(self) -> Self {
        if self == Self::AGAIN { Self::BUSY } else { self }
    }

    /// The device lacks the operation.
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The completion queue is in error.
    pub(crate) const IO: Self = Self(libc::EIO);
}

/// The number of a process on its host: the upper 12 bits of its queue pair numbers. 1..=4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u16);

impl Slot {
    /// Returns the slot in a queue pair number.
    #[allow(clippy::cast_possible_truncation, reason = "masked to 12 bits")]
    pub(crate) const fn of_qpn(qpn: u32) -> Self {
        Self(((qpn >> 12) & 0xfff) as u16)
    }

    /// Whether a process may have this slot.
    pub(crate) const fn is_real(self) -> bool {
        1 <= self.0 && self.0 <= 4094
    }
}

/// A host: a small number that the driver assigns, counting from 0, which is this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Host(pub(crate) u16);

impl Host {
    /// This host.
    pub(crate) const LOCAL: Self = Self(0);
}

/// The address of a process: slots are unique within a host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId {
    /// The host of the process.
    pub(crate) host: Host,
    /// The slot of the process on that host.
    pub(crate) slot: Slot,
}

impl PeerId {
    /// A process on this host.
    pub(crate) const fn local(slot: Slot) -> Self {
        Self { host: Host::LOCAL, slot }
    }

    /// Returns the process that owns a queue pair.
    pub(crate) const fn of(host: Host, qpn: u32) -> Self {
        Self { host, slot: Slot::of_qpn(qpn) }
    }
}

/// A link to another process, or the loopback: a small number that the driver assigns, counting
/// from 0. The number may be used again after
/// [`handle_link_down`](super::Engine::handle_link_down).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u32);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u32);
    };
}
id! {
    /// A protection domain of this engine.
    PdId
}
id! {
    /// A completion queue of this engine.
    CqId
}
id! {
    /// A shared receive queue of this engine.
    SrqId
}
id! {
    /// A queue pair of this engine.
    QpId
}

/// The keys of a registered region. `lkey == rkey`, as on most devices; the rkey works only if the
/// region has a remote right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MrKeys {
    /// The key for scatter/gather entries.
    pub(crate) lkey: u32,
    /// The key for remote access.
    pub(crate) rkey: u32,
}

/// The arguments of a registration.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// The first byte of the memory.
    pub(crate) addr: *mut u8,
    /// The length in bytes.
    pub(crate) len: usize,
    /// The address that requests use for the first byte.
    pub(crate) iova: u64,
    /// The rights, `IBV_ACCESS_*`.
    pub(crate) access: u32,
    /// The shared memory that holds the range, if any (`rdma_mem::shared::find`).
    pub(crate) backing: Option<Arc<Backing>>,
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QpState {
    /// As created.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains: no new request starts.
    Sqd,
    /// The send queue is in error; receives go on. Reliable connections never enter this state.
    Sqe,
    /// The queue pair is in error: every request is flushed.
    Err,
}

impl QpState {
    const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Converts the verbs value, if it names a state.
    pub(crate) fn from_raw(raw: ibv_qp_state) -> Option<Self> {
        Self::ALL.get(raw.0 as usize).copied()
    }

    /// Returns the verbs value.
    pub(crate) const fn raw(self) -> ibv_qp_state {
        ibv_qp_state(self as u32)
    }
}

/// The path of a datagram: the content of an address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The destination host; without meaning for a group.
    pub(crate) host: Host,
    /// The GRH in front of the payload, without the fields that depend on the payload's length.
    pub(crate) grh: Grh,
    /// The destination multicast group, if the destination is a group.
    pub(crate) group: Option<Gid>,
    /// The service level in the receiver's completion.
    pub(crate) sl: u8,
    /// The sender's local identifier (LID) in the receiver's completion.
    pub(crate) slid: u16,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The path to the destination.
    pub(crate) path: Path,
    /// The destination queue pair number; [`MULTICAST_QPN`] for a group.
    pub(crate) qpn: u32,
    /// The Q_Key to send; if the upper bit is set, the Q_Key of the sending queue pair is sent
    /// instead.
    pub(crate) qkey: u32,
}

/// The queue pair number that stands for all queue pairs of a group.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// A question of the engine to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Asks for a link to a process: answer with `handle_link_up` or `handle_unreachable`. For this
    /// process, the link is the loopback.
    Link(PeerId),
    /// Asks for the processes that are in a multicast group: answer with `handle_members`.
    Members(Gid),
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

/// The arguments of a queue pair's creation. The depths are enforced exactly as given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInit {
    /// The transport service.
    pub(crate) service: ServiceType,
    /// The protection domain.
    pub(crate) pd: PdId,
    /// The completion queue of send requests.
    pub(crate) send_cq: CqId,
    /// The completion queue of receive requests.
    pub(crate) recv_cq: CqId,
    /// The shared receive queue; `None` for a receive queue of its own.
    pub(crate) srq: Option<SrqId>,
    /// Depth of the send queue.
    pub(crate) max_send_wr: u32,
    /// Depth of the receive queue.
    pub(crate) max_recv_wr: u32,
    /// Most entries of a send request's gather list.
    pub(crate) max_send_sge: u32,
    /// Most entries of a receive request's scatter list.
    pub(crate) max_recv_sge: u32,
    /// Most bytes of inline data in one request.
    pub(crate) max_inline_data: u32,
    /// Whether every send request is signaled.
    pub(crate) sq_sig_all: bool,
    /// A value that comes back in this queue pair's events.
    pub(crate) token: u64,
}

/// The arguments of a shared receive queue's creation. The depth is enforced exactly as given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqInit {
    /// The protection domain of the queue and of the memory in its requests.
    pub(crate) pd: PdId,
    /// Depth of the queue.
    pub(crate) max_wr: u32,
    /// Most entries of a request's scatter list.
    pub(crate) max_sge: u32,
    /// A value that comes back in this queue's events.
    pub(crate) token: u64,
}

/// The attributes of a shared receive queue that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqStatus {
    /// Depth of the queue.
    pub(crate) max_wr: u32,
    /// The limit of the armed event; 0 if it is not armed.
    pub(crate) limit: u32,
}

/// A change to a queue pair: a field that is `None` stays as it is. The caller has checked masks
/// and transitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModifyQp {
    /// The new state.
    pub(crate) state: Option<QpState>,
    /// The rights of remote requests, `qp_access_flags`.
    pub(crate) access: Option<u32>,
    /// The host of the destination queue pair, from the address vector.
    pub(crate) dest_host: Option<Host>,
    /// `dest_qp_num`; the slot in it identifies the process.
    pub(crate) dest_qpn: Option<u32>,
    /// `qkey`, of a datagram queue pair.
    pub(crate) qkey: Option<u32>,
    /// `rq_psn`.
    pub(crate) rq_psn: Option<u32>,
    /// `sq_psn`.
    pub(crate) sq_psn: Option<u32>,
    /// `max_rd_atomic`: the most reads and atomics in flight as requester.
    pub(crate) max_rd_atomic: Option<u8>,
    /// `max_dest_rd_atomic`: the most reads and atomics in flight as responder.
    pub(crate) max_dest_rd_atomic: Option<u8>,
    /// `min_rnr_timer`, in its 5-bit encoding.
    pub(crate) min_rnr_timer: Option<u8>,
    /// `timeout`, in its 5-bit encoding.
    pub(crate) timeout: Option<u8>,
    /// `retry_cnt`.
    pub(crate) retry_cnt: Option<u8>,
    /// `rnr_retry`; 7 means without limit.
    pub(crate) rnr_retry: Option<u8>,
    /// `en_sqd_async_notify`.
    pub(crate) sqd_notify: Option<bool>,
}

/// The attributes of a queue pair that only the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpStatus {
    /// The current state.
    pub(crate) state: QpState,
    /// `sq_draining`: the state is SQD, and requests that have started are not complete yet.
    pub(crate) sq_draining: bool,
    /// The PSN of the next send request.
    pub(crate) sq_psn: u32,
    /// The PSN of the request that the responder expects next.
    pub(crate) rq_psn: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    /// Send.
    Send,
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Op {
    /// Whether the response brings data, which goes to the request's local list.
    pub(crate) const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether the operation changes memory that it names by a key.
    pub(super) const fn changes_memory(self) -> bool {
        matches!(self, Self::Write | Self::CompareSwap | Self::FetchAdd)
    }

    pub(super) const fn completion(self) -> ibv_wc_opcode {
        match self {
            Self::Send => ibv_wc_opcode::IBV_WC_SEND,
            Self::Write => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            Self::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
            Self::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            Self::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        }
    }
}

bitflags! {
    /// The flags of a send request: the `IBV_SEND_*` flags that the engine knows, and its own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SendFlags: u8 {
        /// The request starts only after all earlier reads and atomics are complete.
        const FENCE = 1;
        /// The request reports its completion.
        const SIGNALED = 2;
        /// The completion at the receiver is solicited.
        const SOLICITED = 4;
        /// A fault waits for the request.
        const FAULT = 1 << 6;
        /// The request carries an immediate.
        const IMM = 1 << 7;
    }
}

/// A send request as the send queue keeps it, without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest {
    /// A value that comes back in the completion.
    pub(crate) wr_id: u64,
    /// The remote address of a one-sided operation.
    pub(crate) remote_addr: u64,
    /// The compare operand, or the addend.
    pub(crate) compare_add: u64,
    /// The swap operand.
    pub(crate) swap: u64,
    /// The remote key of a one-sided operation.
    pub(crate) rkey: u32,
    /// The immediate, as the caller holds it (network order).
    pub(crate) imm: u32,
    /// The operation.
    pub(crate) op: Op,
    /// The flags.
    pub(crate) flags: SendFlags,
}

/// The data of a send request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendData<'a> {
    /// Registered memory, which is read (or, by reads and atomics, written) later.
    List(&'a [ibv_sge]),
    /// Bytes that are copied while the request is posted (`IBV_SEND_INLINE`).
    Inline(&'a [Source<'a>]),
}

/// The object of an asynchronous event, with the token given at the object's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A queue pair.
    Qp(QpId, u64),
    /// A completion queue.
    Cq(CqId, u64),
    /// A shared receive queue.
    Srq(SrqId, u64),
    /// The port.
    Port,
    /// The whole device.
    Device,
}

/// An event for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An armed completion queue got a completion: one event for its completion channel.
    Completion {
        /// The completion queue.
        cq: CqId,
        /// The queue's token.
        token: u64,
    },
    /// An asynchronous event.
    Async {
        /// `IBV_EVENT_*`.
        event_type: ibv_event_type,
        /// The object of the event.
        element: Element,
    },
}

/// The way in which [`poll_transmit`](super::Engine::poll_transmit) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmit {
    /// Nothing is left to send over this link.
    Idle,
    /// `try_push` found no space: call again when the link has space.
    Blocked,
    /// The copying budget of one call is spent: let others run, then call again.
    More,
}
