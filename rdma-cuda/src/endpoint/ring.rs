//! The slots of a side, its messages, and the completions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::credit::{ReceiveWindow, SendWindow};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{Buffer, ErrorKind, ExposedSlice, InitializedQueuePair, Poller, ProtectionDomain, QueuePair};

use crate::endpoint::slot::{GpuSlot, HostSlot, Slot};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{GpuSlice, PinnedMemory};

pub(super) const KIB: usize = 1024;
/// Receives for a greeting and for credits. The peer's greeting is processed before any credits can
/// be on the way.
pub(super) const CONTROL_RECEIVES: u32 = ReceiveWindow::MAX_PENDING_GRANTS;
/// The token of a message without memory.
const CONTROL: u64 = u64::MAX;
/// The token of a chunk that is sent from the GPU's memory.
const DIRECT: u64 = u64::MAX - 1;

/// The memory of a completed request.
type Returned = (Option<Buffer>, Option<ExposedSlice<rdma::Gpu>>);

/// A received chunk.
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) len: usize,
    pub(super) is_last: bool,
}

/// A message in the immediate data of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Message {
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

/// The memory of a slot that a queue has.
enum Lent {
    Host(Arc<PinnedMemory>),
    Gpu(GpuSlice<u8>),
}

/// A queue pair that takes receives, connected or not yet.
pub(super) trait Receives {
    fn post_host(&mut self, buffer: Buffer, token: u64) -> rdma::Result<()>;

    fn post_gpu(&mut self, segment: ExposedSlice<rdma::Gpu>, token: u64) -> rdma::Result<()>;
}

macro_rules! receives {
    ($($queue_pair:ty)*) => { $(
        impl Receives for $queue_pair {
            fn post_host(&mut self, buffer: Buffer, token: u64) -> rdma::Result<()> {
                self.post_recv(buffer, token).map_err(|refused| refused.error())
            }

            fn post_gpu(&mut self, segment: ExposedSlice<rdma::Gpu>, token: u64) -> rdma::Result<()> {
                self.post_recv(segment, token).map_err(|refused| refused.error())
            }
        }
    )* };
}
receives! { QueuePair<Rc> InitializedQueuePair<Rc> }

/// The slots, credits and completions of a side.
pub(super) struct Ring {
    poller: Poller,
    timeout: Option<Duration>,
    chunk: usize,
    /// The credits of chunks to send; none before the peer's greeting.
    sends: SendWindow,
    receives: ReceiveWindow,
    /// The memory of each slot that a queue has, by token.
    lent: Vec<Option<Lent>>,
    /// The number of slots for sending.
    slots: u32,
    free: Vec<HostSlot>,
    /// Chunks that the NIC reads from the GPU's memory.
    reading: usize,
    arrived: VecDeque<Chunk>,
    peer_chunk: Option<usize>,
}

impl Ring {
    pub(super) fn new(poller: Poller, chunk: usize, depth: u32, timeout: Option<Duration>) -> Self {
        Self {
            poller,
            timeout,
            chunk,
            sends: SendWindow::new(0, 0),
            receives: ReceiveWindow::new(depth, depth),
            lent: Vec::new(),
            slots: 0,
            free: Vec::new(),
            reading: 0,
            arrived: VecDeque::new(),
            peer_chunk: None,
        }
    }

    /// Makes the slots for sending, if there are none yet.
    pub(super) fn add_slots(&mut self, gpu: &Gpu, pd: &ProtectionDomain) -> Result<()> {
        while self.slots < self.receives.window() {
            self.free.push(HostSlot::new(gpu, pd, self.chunk)?);
            self.slots += 1;
        }
        Ok(())
    }

    /// A slot for sending, if one is free.
    pub(super) fn take_free(&mut self) -> Option<HostSlot> {
        self.free.pop()
    }

    /// The size of a chunk that both sides have space for; `None` before the peer's greeting.
    pub(super) fn peer_chunk(&self) -> Option<usize> {
        self.peer_chunk.map(|chunk| chunk.min(self.chunk))
    }

    pub(super) fn has_credit(&self) -> bool {
        self.sends.available() > 0
    }

    /// Keeps the memory of a slot for a queue, which gets the token.
    fn lend(&mut self, memory: Lent) -> u64 {
        let place = self.lent.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lent.push(None);
            self.lent.len() - 1
        });
        self.lent[place] = Some(memory);
        place as u64
    }

    /// The slot that a queue returned.
    fn returned(&mut self, returned: Returned, token: u64) -> Result<Slot> {
        let place = usize::try_from(token).ok().and_then(|place| self.lent.get_mut(place));
        match (place.and_then(Option::take), returned) {
            (Some(Lent::Host(memory)), (Some(buffer), _)) => Ok(Slot::Host(HostSlot { buffer, memory })),
            (Some(Lent::Gpu(slice)), (_, Some(segment))) => Ok(Slot::Gpu(GpuSlot { segment, slice })),
            _ => Err(Error::EndpointFailed),
        }
    }

    /// Sends the greeting, the first message.
    pub(super) fn greet(&mut self, queue_pair: &mut QueuePair<Rc>) -> Result<()> {
        self.control(queue_pair, Message::Greeting { depth: self.receives.window(), chunk: self.chunk })
    }

    pub(super) fn control(&mut self, queue_pair: &mut QueuePair<Rc>, message: Message) -> Result<()> {
        loop {
            match queue_pair.post_send(op::send_imm((), message.to_imm()).token(CONTROL)) {
                Ok(()) => return Ok(()),
                Err(refused) if refused.kind() == ErrorKind::QueueFull => self.progress(queue_pair)?,
                Err(refused) => return Err(refused.error().into()),
            }
        }
    }

    /// Sends the front of a slot as a chunk. There is a credit for it.
    pub(super) fn send(
        &mut self,
        queue_pair: &mut QueuePair<Rc>,
        slot: HostSlot,
        len: usize,
        is_last: bool,
    ) -> Result<()> {
        let imm = Message::Chunk { is_last }.to_imm();
        let HostSlot { mut buffer, memory } = slot;
        let token = self.lend(Lent::Host(memory));
        loop {
            match queue_pair.post_send(op::send_imm(buffer.part(..len), imm).token(token)) {
                Ok(()) => break,
                Err(refused) => match refused.into_parts() {
                    (error, Some(returned)) if error.kind() == ErrorKind::QueueFull => buffer = returned,
                    (error, _) => return Err(error.into()),
                },
            }
            self.progress(queue_pair)?;
        }
        self.spend();
        Ok(())
    }

    /// Sends memory of the GPU as a chunk. There is a credit for it.
    pub(super) fn send_direct(
        &mut self,
        queue_pair: &mut QueuePair<Rc>,
        mut segment: ExposedSlice<rdma::Gpu>,
        is_last: bool,
    ) -> Result<()> {
        let imm = Message::Chunk { is_last }.to_imm();
        loop {
            match queue_pair.post_send(op::send_imm(segment, imm).token(DIRECT)) {
                Ok(()) => break,
                Err(refused) => match refused.into_parts() {
                    (error, Some(returned)) if error.kind() == ErrorKind::QueueFull => segment = returned,
                    (error, _) => return Err(error.into()),
                },
            }
            self.progress(queue_pair)?;
        }
        self.spend();
        self.reading += 1;
        Ok(())
    }

    /// Counts a chunk that is sent.
    fn spend(&mut self) {
        let has_credit = self.sends.spend();
        debug_assert!(has_credit, "a chunk without a credit");
    }

    /// Waits until the NIC has read all chunks that are sent from the GPU's memory.
    pub(super) fn finish_direct(&mut self, queue_pair: &mut QueuePair<Rc>) -> Result<()> {
        while self.reading > 0 {
            self.progress(queue_pair)?;
        }
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
        let is_counted = self.receives.post();
        debug_assert!(is_counted, "more slots than chunks");
        if !self.receives.is_due() {
            return Ok(());
        }
        let count = self.receives.grant_count();
        self.control(queue_pair, Message::Credits(count))
    }

    /// Posts the receive of an empty slot.
    pub(super) fn post_receive(&mut self, queue_pair: &mut impl Receives, slot: Slot) -> rdma::Result<()> {
        match slot {
            Slot::Host(HostSlot { buffer, memory }) => {
                let token = self.lend(Lent::Host(memory));
                queue_pair.post_host(buffer, token)
            }
            Slot::Gpu(GpuSlot { segment, slice }) => {
                let token = self.lend(Lent::Gpu(slice));
                queue_pair.post_gpu(segment, token)
            }
        }
    }

    /// Whether less than the timeout has passed since an instant.
    pub(super) fn check_time(&self, since: Instant) -> Result<()> {
        let is_late = self.timeout.is_some_and(|timeout| since.elapsed() > timeout);
        if is_late { Err(Error::Timeout) } else { Ok(()) }
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
        let (len, returned) = (completion.byte_len(), (completion.take_buffer(), completion.take_gpu_slice()));
        match (opcode, token) {
            (Opcode::Recv, _) => {
                let slot = self.returned(returned, token)?;
                if let Some(empty) = self.received(slot, len, imm)? {
                    self.post_receive(queue_pair, empty)?;
                }
            }
            // It takes a receive and brings nothing.
            (Opcode::RecvWriteImm, _) => return Err(Error::ForeignMessage),
            (_, CONTROL) => {}
            (_, DIRECT) => self.reading = self.reading.saturating_sub(1),
            (_, _) => match self.returned(returned, token)? {
                Slot::Host(slot) => self.free.push(slot),
                Slot::Gpu(_) => return Err(Error::EndpointFailed),
            },
        }
        Ok(true)
    }

    /// Takes a message; returns the slot of one that is not a chunk.
    fn received(&mut self, slot: Slot, len: usize, imm: Option<u32>) -> Result<Option<Slot>> {
        let imm = imm.ok_or(Error::ForeignMessage)?;
        match Message::from_imm(imm) {
            Message::Chunk { is_last } => {
                self.receives.receive().map_err(|_| Error::ForeignMessage)?;
                // A device that reports more bytes than the slot has is not believed.
                let len = len.min(slot.len());
                // Without this a peer could send chunks for ever that bring a message no further.
                if !is_last && self.peer_chunk() != Some(len) {
                    return Err(Error::ForeignMessage);
                }
                self.arrived.push_back(Chunk { slot, len, is_last });
                return Ok(None);
            }
            Message::Credits(count) => self.sends.accept_count(count).map_err(|_| Error::ForeignMessage)?,
            Message::Greeting { depth, chunk } if self.peer_chunk.is_none() && depth > 0 && chunk > 0 => {
                self.sends = SendWindow::new(depth, depth);
                self.peer_chunk = Some(chunk);
            }
            Message::Greeting { .. } => return Err(Error::ForeignMessage),
        }
        Ok(Some(slot))
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes, {} credits", self.receives.window(), self.chunk, self.sends.available())
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
