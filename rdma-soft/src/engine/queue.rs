//! The rings of a queue pair: send requests with their lists and inline data, and receive requests.
//! Each ring is allocated once.

use rdma_sys::ibv_sge;

use super::memory::Source;
use super::types::{Errno, Op, SendData, SendFlags, SendRequest};

/// A send request in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWqe {
    pub(super) request: SendRequest,
    /// The message's length in bytes; `u32::MAX` stands for every length that no message can have.
    pub(super) total: u32,
    /// The message's number, valid once the message was sent whole through a link.
    pub(super) number: u32,
    /// Bytes of a read that have arrived, or bytes of a direct operation that are executed.
    pub(super) progress: u32,
    /// The number of entries in the request's list.
    sges: u8,
    /// The data lies in the inline slab.
    pub(super) inline: bool,
    /// Nothing is left to do: the answer has come, or the request needed no link.
    pub(super) done: bool,
    /// The data of this write is in place already; only the immediate is still to be sent.
    pub(super) written: bool,
}

impl SendWqe {
    const EMPTY: Self = Self {
        request: SendRequest {
            wr_id: 0,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            rkey: 0,
            imm: 0,
            op: Op::Send,
            flags: SendFlags::empty(),
        },
        total: 0,
        number: 0,
        progress: 0,
        sges: 0,
        inline: false,
        done: false,
        written: false,
    };

    pub(super) const fn has(&self, flags: SendFlags) -> bool {
        self.request.flags.contains(flags)
    }
}

pub(super) fn boxed<T: Clone>(len: usize, value: T) -> Result<Box<[T]>, Errno> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    vec.resize(len, value);
    Ok(vec.into_boxed_slice())
}

/// Returns the length of a list as a message; `u32::MAX` if the list is longer than any message.
/// The usual list of one entry takes no loop.
#[inline]
fn list_len(list: &[ibv_sge]) -> u32 {
    if let [sge] = list {
        return sge.length;
    }
    let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    u32::try_from(total).unwrap_or(u32::MAX)
}

/// Copies a list into the ring. For the usual list of one entry, a loop is faster than a call of
/// `memcpy`.
#[inline]
fn copy_list(to: &mut [ibv_sge], list: &[ibv_sge]) {
    for (to, from) in to.iter_mut().zip(list) {
        *to = *from;
    }
}

/// The send queue. Positions only grow, and `head <= next <= tail`.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: Box<[SendWqe]>,
    lists: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    limit: u32,
    max_sge: usize,
    max_inline: usize,
    /// Whether every request is signaled.
    pub(super) sig_all: bool,
    /// The position of the oldest request that is not complete.
    pub(super) head: u64,
    /// The position of the first request that is not sent.
    pub(super) next: u64,
    /// The position of the next request to post.
    pub(super) tail: u64,
}

impl SendQueue {
    pub(super) fn new(limit: u32, max_sge: u32, max_inline: u32, sig_all: bool) -> Result<Self, Errno> {
        let len = limit.max(1).next_power_of_two() as usize;
        let (max_sge, max_inline) = (max_sge as usize, max_inline as usize);
        Ok(Self {
            wqes: boxed(len, SendWqe::EMPTY)?,
            lists: boxed(len * max_sge, ibv_sge::default())?,
            inline: boxed(len * max_inline, 0)?,
            limit,
            max_sge,
            max_inline,
            sig_all,
            head: 0,
            next: 0,
            tail: 0,
        })
    }

    /// Returns the number of places in the ring.
    pub(super) const fn capacity(&self) -> usize {
        self.wqes.len()
    }

    /// Returns the index in the ring of a request's position.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "masked to the ring's size")]
    pub(super) const fn index(&self, position: u64) -> usize {
        position as usize & (self.wqes.len() - 1)
    }

    /// Returns how many more requests may be posted.
    #[allow(clippy::cast_possible_truncation, reason = "never more than the limit are in the ring")]
    pub(super) const fn room(&self) -> u32 {
        self.limit - (self.tail - self.head) as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline]
    pub(super) fn at(&self, position: u64) -> &SendWqe {
        &self.wqes[self.index(position)]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, position: u64) -> &mut SendWqe {
        let index = self.index(position);
        &mut self.wqes[index]
    }

    #[inline]
    pub(super) fn list(&self, position: u64) -> &[ibv_sge] {
        let index = self.index(position);
        let start = index * self.max_sge;
        &self.lists[start..start + usize::from(self.wqes[index].sges)]
    }

    #[inline]
    pub(super) fn inline(&self, position: u64) -> Source<'_> {
        let index = self.index(position);
        let start = index * self.max_inline;
        Source::of(&self.inline[start..start + self.wqes[index].total as usize])
    }

    /// Returns the length of a request's message, if the queue can hold the request.
    #[inline(always)]
    pub(super) fn admit(&self, op: Op, data: SendData<'_>) -> Result<u32, Errno> {
        if self.room() == 0 {
            return Err(Errno::NOMEM);
        }
        match data {
            SendData::List(list) if list.len() <= self.max_sge => Ok(list_len(list)),
            SendData::Inline(parts) if !op.fetches() => {
                let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
                let total = total.filter(|total| *total <= self.max_inline);
                total.and_then(|total| u32::try_from(total).ok()).ok_or(Errno::INVAL)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Posts a request with `total` bytes of data, as [`admit`](Self::admit) returned.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a list has at most MAX_SGE entries")]
    pub(super) fn push(&mut self, request: &SendRequest, data: SendData<'_>, total: u32) {
        let index = self.index(self.tail);
        self.tail += 1;
        let wqe = &mut self.wqes[index];
        wqe.request = *request;
        if self.sig_all {
            wqe.request.flags |= SendFlags::SIGNALED;
        }
        (wqe.total, wqe.progress) = (total, 0);
        (wqe.done, wqe.written) = (false, false);
        match data {
            SendData::List(list) => {
                (wqe.inline, wqe.sges) = (false, list.len() as u8);
                copy_list(&mut self.lists[index * self.max_sge..], list);
            }
            SendData::Inline(parts) => {
                (wqe.inline, wqe.sges) = (true, 0);
                let slab = &mut self.inline[index * self.max_inline..(index + 1) * self.max_inline];
                let mut at = 0;
                for part in parts {
                    part.copy_to_slice(&mut slab[at..]);
                    at += part.len();
                }
            }
        }
    }

    /// Removes all requests.
    pub(super) const fn clear(&mut self) {
        (self.head, self.next, self.tail) = (0, 0, 0);
    }
}

/// A receive request in its ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    pub(super) total: u32,
    sges: u8,
}

impl RecvWqe {
    /// Returns the number of entries in the request's scatter list.
    #[inline]
    pub(super) fn sges(&self) -> usize {
        usize::from(self.sges)
    }
}

/// A receive queue.
#[derive(Debug)]
pub(super) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    lists: Box<[ibv_sge]>,
    limit: u32,
    max_sge: usize,
    head: u64,
    tail: u64,
}

impl RecvQueue {
    pub(super) fn new(limit: u32, max_sge: u32) -> Result<Self, Errno> {
        let len = limit.max(1).next_power_of_two() as usize;
        let max_sge = max_sge as usize;
        let (wqes, lists) = (boxed(len, RecvWqe::default())?, boxed(len * max_sge, ibv_sge::default())?);
        Ok(Self { wqes, lists, limit, max_sge, head: 0, tail: 0 })
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked to the ring's size")]
    const fn index(&self, position: u64) -> usize {
        position as usize & (self.wqes.len() - 1)
    }

    /// Returns the number of requests in the queue.
    #[allow(clippy::cast_possible_truncation, reason = "never more than the limit are in the ring")]
    pub(super) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// Returns the most requests that the queue takes.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the length of the longest scatter list.
    pub(super) const fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// Returns a copy of the queue with another limit, of at least [`len`](Self::len).
    pub(super) fn resized(&self, limit: u32) -> Result<Self, Errno> {
        let mut resized = Self::new(limit, u32::try_from(self.max_sge).unwrap_or(u32::MAX))?;
        for position in self.head..self.tail {
            let (wqe, list) = self.at(position);
            resized.push(wqe.wr_id, list);
        }
        Ok(resized)
    }

    #[inline]
    fn at(&self, position: u64) -> (RecvWqe, &[ibv_sge]) {
        let index = self.index(position);
        let wqe = self.wqes[index];
        let start = index * self.max_sge;
        (wqe, &self.lists[start..start + wqe.sges()])
    }

    /// Returns the oldest receive request and its list.
    #[inline]
    pub(super) fn front(&self) -> Option<(RecvWqe, &[ibv_sge])> {
        if self.head == self.tail { None } else { Some(self.at(self.head)) }
    }

    /// Removes the oldest receive request.
    pub(super) fn pop(&mut self) -> Option<RecvWqe> {
        let (wqe, _) = self.front()?;
        self.head += 1;
        Some(wqe)
    }

    /// Checks that a list fits the queue and that the queue is not full.
    pub(super) fn admit(&self, list: &[ibv_sge]) -> Result<(), Errno> {
        if list.len() > self.max_sge {
            return Err(Errno::INVAL);
        }
        if self.tail - self.head >= u64::from(self.limit) { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// Posts a list that [`admit`](Self::admit) has accepted.
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SGE entries")]
    pub(super) fn push(&mut self, wr_id: u64, list: &[ibv_sge]) {
        let index = self.index(self.tail);
        copy_list(&mut self.lists[index * self.max_sge..], list);
        self.wqes[index] = RecvWqe { wr_id, total: list_len(list), sges: list.len() as u8 };
        self.tail += 1;
    }

    /// Removes all requests.
    pub(super) const fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }
}
