//! Names and values that cross the engine's boundary.

use std::sync::Arc;

use bitflags::bitflags;
use rdma_mem::Backing;
use rdma_sys::{ibv_event_type, ibv_qp_state, ibv_sge, ibv_wc_opcode};

use super::grh::{Gid, Grh};
use super::memory::Source;

/// A point in time: nanoseconds from an origin that the caller chooses, never going back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(pub(crate) u64);

impl Time {
    /// The moment `nanos` nanoseconds later; saturates.
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
    /// The device lacks the operation.
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The completion queue is in error.
    pub(crate) const IO: Self = Self(libc::EIO);
}

/// The number of a process on its host: the upper 12 bits of its queue pair numbers. 1..=4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u16);

impl Slot {
    /// The slot in a queue pair number.
    #[allow(clippy::cast_possible_truncation, reason = "masked to 12 bits")]
    pub(crate) const fn of_qpn(qpn: u32) -> Self {
        Self(((qpn >> 12) & 0xfff) as u16)
    }

    /// Whether a process may have it.
    pub(crate) const fn is_real(self) -> bool {
        1 <= self.0 && self.0 <= 4094
    }
}

/// A host: a small number that the driver chooses, dense, from 0, which is this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Host(pub(crate) u16);

impl Host {
    /// This host.
    pub(crate) const LOCAL: Self = Self(0);
}

/// The address of a process: slots are unique within a host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId {
    /// Its host.
    pub(crate) host: Host,
    /// Its number there.
    pub(crate) slot: Slot,
}

impl PeerId {
    /// A process on this host.
    pub(crate) const fn local(slot: Slot) -> Self {
        Self { host: Host::LOCAL, slot }
    }

    /// The process that has a queue pair.
    pub(crate) const fn of(host: Host, qpn: u32) -> Self {
        Self { host, slot: Slot::of_qpn(qpn) }
    }
}

/// A link to another process, or the loopback: a small number that the driver chooses (dense, from
/// 0, reusable after [`handle_link_down`](super::Engine::handle_link_down)).
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
    /// A queue pair of this engine.
    QpId
}

/// The keys of a registered region. `lkey == rkey`, as on most devices; the rkey works only with a
/// remote right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MrKeys {
    /// For scatter/gather entries.
    pub(crate) lkey: u32,
    /// For remote access.
    pub(crate) rkey: u32,
}

/// The arguments of a registration.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// First byte.
    pub(crate) addr: *mut u8,
    /// Length in bytes.
    pub(crate) len: usize,
    /// The address that requests will use for the first byte.
    pub(crate) iova: u64,
    /// `IBV_ACCESS_*`.
    pub(crate) access: u32,
    /// The shared memory that it lies in, if it does (`rdma_mem::shared::find`).
    pub(crate) backing: Option<Arc<Backing>>,
}

/// The answer to a peer that asked for one of our regions: the file, and the part of it to map.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// The link on which the peer asked.
    pub(crate) link: LinkId,
    /// The region's key.
    pub(crate) rkey: u32,
    /// The file.
    pub(crate) backing: Arc<Backing>,
    /// Where in the file the region begins.
    pub(crate) offset: u64,
    /// The region's length.
    pub(crate) len: usize,
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
    /// The send queue is in error; receives go on (never entered by reliable connections).
    Sqe,
    /// Everything is flushed.
    Err,
}

impl QpState {
    const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// From the verbs value, if it names a state.
    pub(crate) fn from_raw(raw: ibv_qp_state) -> Option<Self> {
        Self::ALL.get(raw.0 as usize).copied()
    }

    /// The verbs value.
    pub(crate) const fn raw(self) -> ibv_qp_state {
        ibv_qp_state(self as u32)
    }
}

/// The way of a datagram: what an address handle stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The host that it leads to; of no meaning for a group.
    pub(crate) host: Host,
    /// The header in front of the payload, not yet sealed.
    pub(crate) grh: Grh,
    /// The multicast group that it leads to, if it does.
    pub(crate) group: Option<Gid>,
    /// Service level, as the receiver will see it.
    pub(crate) sl: u8,
    /// The sender's local identifier.
    pub(crate) slid: u16,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The way.
    pub(crate) path: Path,
    /// The queue pair; [`MULTICAST_QPN`] for a group.
    pub(crate) qpn: u32,
    /// The receiver's Q_Key; with the upper bit set, that of the sending queue pair is meant.
    pub(crate) qkey: u32,
}

/// The number that stands for all queue pairs of a group.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// A question of the engine to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A link to a process: answer with `handle_link_up` or `handle_unreachable`. Our own process:
    /// the loopback.
    Link(PeerId),
    /// The processes that are in a multicast group: answer with `handle_members`.
    Members(Gid),
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceType {
    /// Reliable connection.
    Rc,
    /// Unreliable datagrams.
    Ud,
}

/// The arguments of a queue pair's creation. The depths are enforced as given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInit {
    /// Its transport service.
    pub(crate) service: ServiceType,
    /// Its protection domain.
    pub(crate) pd: PdId,
    /// Where send completions go.
    pub(crate) send_cq: CqId,
    /// Where receive completions go.
    pub(crate) recv_cq: CqId,
    /// Depth of the send queue.
    pub(crate) max_send_wr: u32,
    /// Depth of the receive queue.
    pub(crate) max_recv_wr: u32,
    /// Entries of a send request's gather list.
    pub(crate) max_send_sge: u32,
    /// Entries of a receive's scatter list.
    pub(crate) max_recv_sge: u32,
    /// Bytes of inline data in one request.
    pub(crate) max_inline_data: u32,
    /// Every send request is signaled.
    pub(crate) sq_sig_all: bool,
    /// Comes back in this queue pair's events.
    pub(crate) token: u64,
}

/// A change to a queue pair: what is `None` stays. Masks and transitions were checked by the
/// caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModifyQp {
    /// The new state.
    pub(crate) state: Option<QpState>,
    /// `qp_access_flags`.
    pub(crate) access: Option<u32>,
    /// The host that the address vector leads to.
    pub(crate) dest_host: Option<Host>,
    /// `dest_qp_num`; its slot says which process.
    pub(crate) dest_qpn: Option<u32>,
    /// `qkey`, of a queue pair for datagrams.
    pub(crate) qkey: Option<u32>,
    /// `rq_psn`.
    pub(crate) rq_psn: Option<u32>,
    /// `sq_psn`.
    pub(crate) sq_psn: Option<u32>,
    /// `max_rd_atomic`: reads and atomics in flight as requester.
    pub(crate) max_rd_atomic: Option<u8>,
    /// `max_dest_rd_atomic`: reads and atomics in flight as responder.
    pub(crate) max_dest_rd_atomic: Option<u8>,
    /// `min_rnr_timer`, in its 5-bit encoding.
    pub(crate) min_rnr_timer: Option<u8>,
    /// `timeout`, in its 5-bit encoding.
    pub(crate) timeout: Option<u8>,
    /// `retry_cnt`.
    pub(crate) retry_cnt: Option<u8>,
    /// `rnr_retry`; 7 is for ever.
    pub(crate) rnr_retry: Option<u8>,
    /// `en_sqd_async_notify`.
    pub(crate) sqd_notify: Option<bool>,
}

/// The attributes of a queue pair that only the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpStatus {
    /// Its state now.
    pub(crate) state: QpState,
    /// `sq_draining`: in SQD, with requests still outstanding.
    pub(crate) sq_draining: bool,
    /// The number of the next request.
    pub(crate) sq_psn: u32,
    /// The number of the request expected next.
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
    /// Whether an answer brings data, and the local list is where it goes.
    pub(crate) const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether it changes memory that it names by a key.
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
    /// The flags of a send request: those of `IBV_SEND_*` that the engine knows, and whether it has
    /// an immediate.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SendFlags: u8 {
        /// Starts after all reads and atomics before it are complete.
        const FENCE = 1;
        /// Reports its completion.
        const SIGNALED = 2;
        /// The receive completion is solicited.
        const SOLICITED = 4;
        /// Carries an immediate.
        const IMM = 1 << 7;
    }
}

/// A send request as the send queue keeps it, without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest {
    /// Comes back in the completion.
    pub(crate) wr_id: u64,
    /// Target of one-sided operations.
    pub(crate) remote_addr: u64,
    /// Compare operand, or the addend.
    pub(crate) compare_add: u64,
    /// Swap operand.
    pub(crate) swap: u64,
    /// Key of one-sided operations.
    pub(crate) rkey: u32,
    /// Immediate data, as the caller holds it (network order).
    pub(crate) imm: u32,
    /// The operation.
    pub(crate) op: Op,
    /// Its flags.
    pub(crate) flags: SendFlags,
}

/// The data of a send request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendData<'a> {
    /// Registered memory; read (or, by reads and atomics, written) later.
    List(&'a [ibv_sge]),
    /// Copied now (`IBV_SEND_INLINE`).
    Inline(&'a [Source<'a>]),
}

/// The object of an asynchronous event, with the token given at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A queue pair.
    Qp(QpId, u64),
    /// A completion queue.
    Cq(CqId, u64),
}

/// An event for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An armed completion queue got a completion: one event for its channel.
    Completion {
        /// The completion queue.
        cq: CqId,
        /// Its token.
        token: u64,
    },
    /// An asynchronous event.
    Async {
        /// `IBV_EVENT_*`.
        event_type: ibv_event_type,
        /// Its object.
        element: Element,
    },
}

/// How [`poll_transmit`](super::Engine::poll_transmit) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmit {
    /// Nothing is left for this link.
    Idle,
    /// `try_push` found no room: call again when there is some.
    Blocked,
    /// The copying budget of one call is spent: let others run, and call again.
    More,
}
