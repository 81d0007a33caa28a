//! The slots of an end, the credits of both ends, and the completions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdma::op::{Opcode, SendImm};
use rdma::{Buffer, ErrorKind, Poller, QueuePair, Rc};

use super::KIB;
use crate::error::{Error, Result};
use crate::memory::PinnedMemory;
use crate::staging::slot::Slot;

/// The token of a message without a slot.
const CONTROL: u64 = u64::MAX;

/// A received chunk.
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) len: usize,
    pub(super) is_last: bool,
}

/// A message in the immediate data of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Chunk { is_last: bool },
    Credits(u32),
    Greeting { depth: u32, chunk: usize },
}

impl Message {
    fn to_imm(self) -> u32 {
        match self {
            Self::Chunk { is_last } => u32::from(is_last) << 30,
            Self::Credits(count) => 2 << 30 | count,
            Self::Greeting { depth, chunk } => 3 << 30 | depth << 20 | u32::try_from(chunk / KIB).unwrap_or(0),
        }
    }

    fn from_imm(imm: u32) -> Self {
        let value = imm & (u32::MAX >> 2);
        match imm >> 30 {
            2 => Self::Credits(value),
            3 => Self::Greeting { depth: value >> 20, chunk: (value & 0xf_ffff) as usize * KIB },
            last => Self::Chunk { is_last: last == 1 },
        }
    }
}

/// The slots, credits and completions of an end.
pub(super) struct Ring {
    poller: Poller,
    timeout: Option<Duration>,
    chunk: usize,
    depth: u32,
    /// The memory of each slot whose buffer a queue has, by token.
    lent: Vec<Option<Arc<PinnedMemory>>>,
    free: Vec<Slot>,
    arrived: VecDeque<Chunk>,
    peer_chunk: Option<usize>,
    /// Chunks that the peer has room for.
    credits: u32,
    /// Chunks that there is room for and of which the peer does not know.
    owed: u32,
}

impl Ring {
    pub(super) fn new(poller: Poller, chunk: usize, depth: u32, timeout: Option<Duration>) -> Self {
        let (lent, free, arrived) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { poller, timeout, chunk, depth, lent, free, arrived, peer_chunk: None, credits: 0, owed: 0 }
    }

    /// Adds a slot for sending.
    pub(super) fn add_free(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// A slot for sending, if one is free.
    pub(super) fn take_free(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// The size of a chunk that both ends have room for; `None` before the peer's greeting.
    pub(super) fn peer_chunk(&self) -> Option<usize> {
        self.peer_chunk.map(|chunk| chunk.min(self.chunk))
    }

    pub(super) fn has_credit(&self) -> bool {
        self.credits > 0
    }

    /// Takes a slot apart for a queue, which gets the buffer and the token.
    pub(super) fn lend(&mut self, slot: Slot) -> (Buffer, u64) {
        let Slot { buffer, memory } = slot;
        let place = self.lent.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lent.push(None);
            self.lent.len() - 1
        });
        self.lent[place] = Some(memory);
        (buffer, place as u64)
    }

    /// The slot of a buffer that a queue returned.
    fn returned(&mut self, buffer: Buffer, token: u64) -> Result<Slot> {
        let place = usize::try_from(token).ok().and_then(|place| self.lent.get_mut(place));
        let memory = place.and_then(Option::take).ok_or(Error::EndpointFailed)?;
        Ok(Slot { buffer, memory })
    }

    /// Sends the greeting, the first message.
    pub(super) fn greet(&mut self, queue_pair: &mut QueuePair<Rc>) -> Result<()> {
        self.control(queue_pair, Message::Greeting { depth: self.depth, chunk: self.chunk })
    }

    fn control(&mut self, queue_pair: &mut QueuePair<Rc>, message: Message) -> Result<()> {
        loop {
            match queue_pair.post_send(SendImm::new((), message.to_imm()).token(CONTROL)) {
                Ok(()) => return Ok(()),
                Err(refused) if refused.kind() == ErrorKind::QueueFull => self.progress(queue_pair)?,
                Err(refused) => return Err(refused.error().into()),
            }
        }
    }

    /// Sends the front of a slot as a chunk. There is a credit for it.
    pub(super) fn send(&mut self, queue_pair: &mut QueuePair<Rc>, slot: Slot, len: usize, is_last: bool) -> Result<()> {
        let imm = Message::Chunk { is_last }.to_imm();
        let (mut buffer, token) = self.lend(slot);
        loop {
            match queue_pair.post_send(SendImm::new(buffer.part(..len), imm).token(token)) {
                Ok(()) => break,
                Err(refused) => match refused.into_parts() {
                    (error, Some(returned)) if error.kind() == ErrorKind::QueueFull => buffer = returned,
                    (error, _) => return Err(error.into()),
                },
            }
            self.progress(queue_pair)?;
        }
        self.credits -= 1;
        Ok(())
    }

    /// The next chunk that has arrived, without waiting.
    pub(super) fn take_arrived(&mut self, queue_pair: &mut QueuePair<Rc>) -> Result<Option<Chunk>> {
        while self.arrived.is_empty() && self.step(queue_pair, Some(Duration::ZERO))? {}
        Ok(self.arrived.pop_front())
    }

    /// Posts the receive of an empty slot again, and tells the peer if half of the slots are empty.
    pub(super) fn recycle(&mut self, queue_pair: &mut QueuePair<Rc>, slot: Slot) -> Result<()> {
        self.post_receive(queue_pair, slot)?;
        self.owed += 1;
        if self.owed >= self.depth.div_ceil(2) {
            let owed = std::mem::take(&mut self.owed);
            self.control(queue_pair, Message::Credits(owed))?;
        }
        Ok(())
    }

    fn post_receive(&mut self, queue_pair: &mut QueuePair<Rc>, slot: Slot) -> Result<()> {
        let (buffer, token) = self.lend(slot);
        queue_pair.post_recv(buffer, token).map_err(|refused| refused.error().into())
    }

    /// Waits for a completion.
    pub(super) fn progress(&mut self, queue_pair: &mut QueuePair<Rc>) -> Result<()> {
        if self.step(queue_pair, self.timeout)? { Ok(()) } else { Err(Error::Timeout) }
    }

    /// Handles the next completion; false if there is none within the timeout.
    fn step(&mut self, queue_pair: &mut QueuePair<Rc>, timeout: Option<Duration>) -> Result<bool> {
        let Some(mut completion) = self.poller.wait(timeout)? else { return Ok(false) };
        completion.status().map_err(Error::Completion)?;
        let (opcode, token, imm) = (completion.opcode(), completion.token(), completion.imm());
        let (len, buffer) = (completion.byte_len(), completion.take_buffer());
        match (opcode, buffer) {
            (Opcode::Recv, Some(buffer)) => {
                let slot = self.returned(buffer, token)?;
                if let Some(empty) = self.received(slot, len, imm)? {
                    self.post_receive(queue_pair, empty)?;
                }
            }
            (_, Some(buffer)) => {
                let slot = self.returned(buffer, token)?;
                self.free.push(slot);
            }
            (_, None) => {}
        }
        Ok(true)
    }

    /// Takes a message; returns the slot of one that is not a chunk.
    fn received(&mut self, slot: Slot, len: usize, imm: Option<u32>) -> Result<Option<Slot>> {
        let imm = imm.ok_or(Error::ForeignMessage)?;
        match Message::from_imm(imm) {
            Message::Chunk { is_last } => {
                // A device that reports more bytes than the slot has is not believed.
                let len = len.min(slot.buffer.len());
                self.arrived.push_back(Chunk { slot, len, is_last });
                return Ok(None);
            }
            Message::Credits(count) => self.credits = self.credits.saturating_add(count),
            Message::Greeting { depth, chunk } if self.peer_chunk.is_none() && depth > 0 && chunk > 0 => {
                (self.credits, self.peer_chunk) = (depth, Some(chunk));
            }
            Message::Greeting { .. } => return Err(Error::ForeignMessage),
        }
        Ok(Some(slot))
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes, {} credits", self.depth, self.chunk, self.credits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let messages = [
            Message::Chunk { is_last: false },
            Message::Chunk { is_last: true },
            Message::Credits(1023),
            Message::Greeting { depth: 1023, chunk: 1 << 29 },
            Message::Greeting { depth: 1, chunk: KIB },
        ];
        for message in messages {
            assert_eq!(Message::from_imm(message.to_imm()), message);
        }
    }
}
