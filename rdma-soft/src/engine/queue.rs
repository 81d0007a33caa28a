//! The rings of a queue pair: send requests with their lists and inline data, and receives. Allocated once.

use rdma_sys::{ibv_send_flags, ibv_sge, ibv_wc_opcode, ibv_wr_opcode};

use super::frame::Kind;
use super::memory::Source;
use super::types::{Errno, SendRequest};

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    /// The operation, and whether it carries an immediate.
    pub(super) const fn from_verbs(opcode: ibv_wr_opcode) -> Option<(Self, bool)> {
        const SEND: u32 = ibv_wr_opcode::IBV_WR_SEND.0;
        const SEND_IMM: u32 = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM.0;
        const WRITE: u32 = ibv_wr_opcode::IBV_WR_RDMA_WRITE.0;
        const WRITE_IMM: u32 = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0;
        const READ: u32 = ibv_wr_opcode::IBV_WR_RDMA_READ.0;
        const SWAP: u32 = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0;
        const ADD: u32 = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0;
        Some(match opcode.0 {
            SEND => (Self::Send, false),
            SEND_IMM => (Self::Send, true),
            WRITE => (Self::Write, false),
            WRITE_IMM => (Self::Write, true),
            READ => (Self::Read, false),
            SWAP => (Self::CompareSwap, false),
            ADD => (Self::FetchAdd, false),
            _ => return None,
        })
    }

    /// Whether an answer brings data, and the local list is where it goes.
    pub(super) const fn fetches(self) -> bool {
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

    pub(super) const fn frame(self) -> Kind {
        match self {
            Self::Send => Kind::Send,
            Self::Write => Kind::Write,
            Self::Read => Kind::Read,
            Self::CompareSwap => Kind::CompareSwap,
            Self::FetchAdd => Kind::FetchAdd,
        }
    }
}

/// A send request in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWqe {
    pub(super) wr_id: u64,
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
    pub(super) imm: u32,
    /// Bytes of the message; `u32::MAX` stands for anything that a message cannot have.
    pub(super) total: u32,
    /// The message's number, once it was sent whole through a link.
    pub(super) number: u32,
    /// How much of a read has arrived; of a datagram, the first slot that may still have to get it.
    pub(super) progress: u32,
    pub(super) op: Op,
    pub(super) with_imm: bool,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) solicited: bool,
    pub(super) inline: bool,
    /// It needs nothing more: its answer has come, or it was done without a link.
    pub(super) done: bool,
    /// A write whose data is there already; only its immediate is to be sent.
    pub(super) written: bool,
    pub(super) sges: u8,
}

const EMPTY_WQE: SendWqe = SendWqe {
    wr_id: 0,
    remote_addr: 0,
    compare_add: 0,
    swap: 0,
    rkey: 0,
    imm: 0,
    total: 0,
    number: 0,
    progress: 0,
    op: Op::Send,
    with_imm: false,
    signaled: false,
    fence: false,
    solicited: false,
    inline: false,
    done: false,
    written: false,
    sges: 0,
};

pub(super) fn boxed<T: Clone>(len: usize, value: T) -> Result<Box<[T]>, Errno> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    vec.resize(len, value);
    Ok(vec.into_boxed_slice())
}

/// The length of a list as a message; `u32::MAX` if it is longer than any.
pub(super) fn list_len(list: &[ibv_sge]) -> u32 {
    let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    u32::try_from(total).unwrap_or(u32::MAX)
}

/// The send queue: positions only grow, and `head <= next <= tail`.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: Box<[SendWqe]>,
    lists: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    limit: u32,
    max_sge: usize,
    max_inline: usize,
    /// The oldest request that is not complete.
    pub(super) head: u64,
    /// The first that is not sent.
    pub(super) next: u64,
    /// Where the next one is posted.
    pub(super) tail: u64,
}

impl SendQueue {
    pub(super) fn new(limit: u32, max_sge: u32, max_inline: u32) -> Result<Self, Errno> {
        let len = limit.max(1).next_power_of_two() as usize;
        let (max_sge, max_inline) = (max_sge as usize, max_inline as usize);
        Ok(Self {
            wqes: boxed(len, EMPTY_WQE)?,
            lists: boxed(len * max_sge, ibv_sge::default())?,
            inline: boxed(len * max_inline, 0)?,
            limit,
            max_sge,
            max_inline,
            head: 0,
            next: 0,
            tail: 0,
        })
    }

    /// The place of a request in the ring.
    #[allow(clippy::cast_possible_truncation, reason = "masked to the ring's size")]
    pub(super) const fn index(&self, position: u64) -> usize {
        position as usize & (self.wqes.len() - 1)
    }

    /// How many more requests may be posted.
    #[allow(clippy::cast_possible_truncation, reason = "never more than the limit are in the ring")]
    pub(super) const fn room(&self) -> u32 {
        self.limit - (self.tail - self.head) as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    pub(super) const fn max_sge(&self) -> usize {
        self.max_sge
    }

    pub(super) const fn max_inline(&self) -> usize {
        self.max_inline
    }

    pub(super) fn at(&self, position: u64) -> &SendWqe {
        &self.wqes[self.index(position)]
    }

    pub(super) fn at_mut(&mut self, position: u64) -> &mut SendWqe {
        let index = self.index(position);
        &mut self.wqes[index]
    }

    pub(super) fn list(&self, position: u64) -> &[ibv_sge] {
        let index = self.index(position);
        let start = index * self.max_sge;
        &self.lists[start..start + usize::from(self.wqes[index].sges)]
    }

    pub(super) fn inline(&self, position: u64) -> Source<'_> {
        let index = self.index(position);
        let start = index * self.max_inline;
        Source::of(&self.inline[start..start + self.wqes[index].total as usize])
    }

    /// Posts with a list of at most `max_sge` entries; the rest of the request is the caller's to fill in.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SGE entries")]
    pub(super) fn push_list(&mut self, list: &[ibv_sge]) -> &mut SendWqe {
        let index = self.index(self.tail);
        let start = index * self.max_sge;
        for (to, from) in self.lists[start..].iter_mut().zip(list) {
            *to = *from;
        }
        self.tail += 1;
        let wqe = &mut self.wqes[index];
        (wqe.inline, wqe.sges, wqe.total) = (false, list.len() as u8, list_len(list));
        wqe
    }

    /// Posts with data of at most `max_inline` bytes in all; the rest of the request is the caller's to fill in.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_INLINE bytes")]
    pub(super) fn push_inline(&mut self, parts: &[Source<'_>]) -> &mut SendWqe {
        let index = self.index(self.tail);
        let slab = &mut self.inline[index * self.max_inline..(index + 1) * self.max_inline];
        let mut at = 0;
        for part in parts {
            part.copy_to_slice(&mut slab[at..]);
            at += part.len();
        }
        self.tail += 1;
        let wqe = &mut self.wqes[index];
        (wqe.inline, wqe.sges, wqe.total) = (true, 0, at as u32);
        wqe
    }
}

/// A receive in its ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    pub(super) total: u32,
    sges: u8,
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    lists: Box<[ibv_sge]>,
    limit: u32,
    max_sge: usize,
    pub(super) head: u64,
    pub(super) tail: u64,
}

impl RecvQueue {
    pub(super) fn new(limit: u32, max_sge: u32) -> Result<Self, Errno> {
        let len = limit.max(1).next_power_of_two() as usize;
        let max_sge = max_sge as usize;
        Ok(Self {
            wqes: boxed(len, RecvWqe::default())?,
            lists: boxed(len * max_sge, ibv_sge::default())?,
            limit,
            max_sge,
            head: 0,
            tail: 0,
        })
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked to the ring's size")]
    const fn index(&self, position: u64) -> usize {
        position as usize & (self.wqes.len() - 1)
    }

    pub(super) const fn is_full(&self) -> bool {
        self.tail - self.head >= self.limit as u64
    }

    pub(super) const fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// The oldest receive and its list.
    pub(super) fn front(&self) -> Option<(RecvWqe, &[ibv_sge])> {
        if self.head == self.tail {
            return None;
        }
        let index = self.index(self.head);
        let wqe = self.wqes[index];
        let start = index * self.max_sge;
        Some((wqe, &self.lists[start..start + usize::from(wqe.sges)]))
    }

    pub(super) fn pop(&mut self) -> Option<RecvWqe> {
        let (wqe, _) = self.front()?;
        self.head += 1;
        Some(wqe)
    }

    /// Posts a list of at most `max_sge` entries.
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SGE entries")]
    pub(super) fn push(&mut self, wr_id: u64, list: &[ibv_sge]) {
        let index = self.index(self.tail);
        let start = index * self.max_sge;
        for (to, from) in self.lists[start..].iter_mut().zip(list) {
            *to = *from;
        }
        self.wqes[index] = RecvWqe { wr_id, total: list_len(list), sges: list.len() as u8 };
        self.tail += 1;
    }
}

/// Fills in a request as posted, but for its data, in place.
#[inline]
pub(super) fn fill_wqe(wqe: &mut SendWqe, request: &SendRequest<'_>, op: Op, with_imm: bool, sig_all: bool) {
    let has = |flag: ibv_send_flags| request.flags & flag.0 != 0;
    wqe.wr_id = request.wr_id;
    wqe.remote_addr = request.remote_addr;
    wqe.compare_add = request.compare_add;
    wqe.swap = request.swap;
    wqe.rkey = request.rkey;
    wqe.imm = request.imm;
    wqe.op = op;
    wqe.with_imm = with_imm;
    wqe.signaled = sig_all || has(ibv_send_flags::IBV_SEND_SIGNALED);
    wqe.fence = has(ibv_send_flags::IBV_SEND_FENCE);
    wqe.solicited = has(ibv_send_flags::IBV_SEND_SOLICITED);
    wqe.number = 0;
    wqe.progress = 0;
    wqe.done = false;
    wqe.written = false;
}
