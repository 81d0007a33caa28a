//! The staging bytes of a queue pair whose requests name foreign memory: data that is fetched to be
//! sent, and frames that wait until their payload is stored.

use std::collections::VecDeque;

use rdma_sys::ibv_wc_status;

use super::foreign::{CopyEnd, CopyId, Direction, ForeignRange, Waiter};
use super::memory::Source;
use super::tables::Tables;
use super::types::{LinkId, QpId};
use super::wire::{Frame, Refusal};

/// Most bytes that one copy fetches.
const MAX_FETCH: usize = 512 << 10;
/// Most bytes of the payload to which waiting frames of one message are joined.
const MAX_JOINED: usize = 1 << 20;
/// Bytes of waiting frames from which the peer is asked to pause.
const PAUSE_AT: usize = 1 << 20;
/// Bytes of waiting frames at which the peer may go on.
const RESUME_AT: usize = 256 << 10;
/// Most bytes of waiting requests. A peer that pauses when asked stays far below.
const MAX_WAITING: usize = 64 << 20;

/// A number that no link has.
const NO_LINK: LinkId = LinkId(u32::MAX);

/// The staging bytes of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Data of the request that is being sent.
    pub(super) request: Window,
    /// Data of the answer that is being sent.
    pub(super) answer: Window,
    pub(super) inbox: Inbox,
    /// The queue pair went to ERR while a payload was being stored. Its requests are flushed after
    /// that; the oldest send request completes with this status, if there is one.
    pub(super) flush: Option<Option<ibv_wc_status>>,
}

/// A part of a message in foreign memory, fetched to be sent.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// A number that the message has among the messages of this direction.
    message: u64,
    /// The offset of the part in the message.
    at: u32,
    copy: Option<CopyId>,
    bytes: Vec<u8>,
    /// A copy has failed; this is the refusal of a read from the memory.
    failure: Option<Refusal>,
}

/// The data of a message that can be sent now.
pub(super) enum Fetched<'a> {
    Ready(Source<'a>),
    /// A copy is running.
    Waits,
    /// The copy has failed; this is the refusal of a read from the memory.
    Failed(Refusal),
}

impl Window {
    /// Returns the message's bytes from `offset` on that are fetched; fetches some if there are
    /// none. `range` is the message's memory from `offset` on.
    pub(super) fn fetch(
        &mut self,
        (message, offset): (u64, u32),
        range: &ForeignRange,
        (qp, waiter): (QpId, Waiter),
        tables: &mut Tables,
    ) -> Fetched<'_> {
        if self.copy.is_some() {
            return Fetched::Waits;
        }
        let skip = (offset as usize).wrapping_sub(self.at as usize);
        if self.message == message && skip < self.bytes.len() {
            return Fetched::Ready(Source::of(&self.bytes[skip..]));
        }
        // A failure of another message, which was given up during its copy, is of no interest.
        if let Some(refusal) = self.failure.take().filter(|_| self.message == message) {
            return Fetched::Failed(refusal);
        }
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.resize(range.len.min(MAX_FETCH), 0);
        (self.message, self.at) = (message, offset);
        self.copy = Some(tables.copy((qp, waiter), Direction::Fetch, range, bytes));
        Fetched::Waits
    }

    /// Forgets the message. Its number may be used again.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Records the end of the window's copy.
    pub(super) fn end(&mut self, end: CopyEnd) {
        self.copy = None;
        match end {
            CopyEnd::Done(bytes) => self.bytes = bytes,
            CopyEnd::Fault => self.failure = Some(Refusal::Access),
            CopyEnd::Failed | CopyEnd::Unknown => self.failure = Some(Refusal::Operation),
        }
    }
}

/// A frame that waits until the payload of an earlier one is stored.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) link: LinkId,
    pub(super) frame: Frame,
    pub(super) payload: Vec<u8>,
}

/// A frame whose payload is being stored.
#[derive(Debug)]
pub(super) struct Storing {
    pub(super) link: LinkId,
    pub(super) frame: Frame,
    /// The payload, unless the copy has it.
    pub(super) payload: Vec<u8>,
    /// The length of the payload.
    pub(super) len: usize,
    /// Bytes of the payload that are stored.
    pub(super) done: usize,
}

/// The frame whose payload is being stored, and the frames behind it.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) storing: Option<Storing>,
    waiting: VecDeque<Waiting>,
    /// Bytes of the waiting frames and their payloads.
    bytes: usize,
    /// The peer was asked to pause.
    has_paused: bool,
}

/// Bytes that a waiting frame counts for, besides its payload.
const PER_FRAME: usize = size_of::<Waiting>() + 32;

impl Inbox {
    /// Whether a payload is being stored.
    pub(super) const fn is_storing(&self) -> bool {
        self.storing.is_some()
    }

    /// Appends a frame. The pieces of one message are joined.
    pub(super) fn push(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>) {
        self.bytes += payload.len();
        if let Some(last) = self.waiting.back_mut() {
            let end = last.payload.len();
            if last.link == link && last.frame.is_continued_by(frame, end) && end + payload.len() <= MAX_JOINED {
                last.payload.resize(end + payload.len(), 0);
                payload.copy_to_slice(&mut last.payload[end..]);
                last.frame.take_ack_of(frame);
                return;
            }
        }
        let mut bytes = vec![0; payload.len()];
        payload.copy_to_slice(&mut bytes);
        self.bytes += PER_FRAME;
        self.waiting.push_back(Waiting { link, frame: *frame, payload: bytes });
    }

    /// Removes the next frame.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.payload.len() + PER_FRAME;
        Some(next)
    }

    /// Removes all waiting frames; returns them.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Waiting> {
        self.bytes = 0;
        core::mem::take(&mut self.waiting)
    }

    /// Forgets the frames of a link that is gone. The number of the link may be used again.
    pub(super) fn forget_link(&mut self, link: LinkId) {
        self.waiting.retain(|waiting| waiting.link != link);
        self.bytes = self.waiting.iter().map(|waiting| waiting.payload.len() + PER_FRAME).sum();
        self.has_paused = false;
        if let Some(storing) = self.storing.as_mut().filter(|storing| storing.link == link) {
            storing.link = NO_LINK;
        }
    }

    /// Whether the waiting frames have no space for another payload.
    pub(super) const fn is_full(&self, len: usize, outstanding: usize) -> bool {
        self.bytes + len > MAX_WAITING + outstanding
    }

    /// Returns the bytes of the waiting frames.
    #[cfg(test)]
    pub(super) const fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the peer is to be asked to pause (`true`) or to go on (`false`) now. Call it once
    /// after each change.
    pub(super) fn poll_pause(&mut self) -> Option<bool> {
        let pause = if self.has_paused { self.bytes > RESUME_AT } else { self.bytes > PAUSE_AT };
        let changed = pause != self.has_paused;
        self.has_paused = pause;
        changed.then_some(pause)
    }
}
