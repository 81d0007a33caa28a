//! Messages between memories of GPUs through host memory, for GPUs and NICs without a direct way.
//!
//! A message goes in chunks. Each chunk is copied from the GPU to a slot of pinned host memory,
//! sent to a slot of the peer, and copied from there to the peer's GPU. Both ends have a ring of
//! slots and a stream for each direction, so the two copies and the transfer run at the same time.
//!
//! A message of the endpoints is a send with immediate data:
//!
//! | Bits 31 and 30 | Meaning | Other bits |
//! | --- | --- | --- |
//! | 0 | a chunk of a message | |
//! | 1 | the last chunk of a message | |
//! | 2 | credits: the receiver has emptied slots | their number |
//! | 3 | greeting, the first message | 29 to 20: the slots for chunks; 19 to 0: KiB of a slot |
//!
//! The greeting gives the peer its first credits. A chunk costs one credit, so the peer always has
//! a receive for it. Credits are returned for half of the slots at a time, so two such messages can
//! be on the way; with the greeting, an end needs three receives beyond those for chunks.

mod pinned_region;
mod ring;
mod slot;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use rdma::{ConnectOptions, Endpoint, InitOptions, InitializedQueuePair, ProtectionDomain, QueuePair, Rc};

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::GpuSlice;
use crate::order::Ready;
use crate::pending::Pending;
use crate::staging::ring::{Chunk, Ring};
use crate::staging::slot::Slot;
use crate::stream::Stream;

pub use pinned_region::PinnedRegion;

/// Receives for a greeting and for credits.
const CONTROL_RECEIVES: u32 = 3;
const KIB: usize = 1024;

/// Sizes of a [`GpuEndpoint`]. The ends may differ: a chunk is as large as both allow.
#[derive(Debug, Clone, Copy)]
pub struct StagingOptions {
    chunk: usize,
    depth: u32,
    timeout: Option<Duration>,
}

impl Default for StagingOptions {
    fn default() -> Self {
        Self { chunk: 512 * KIB, depth: 8, timeout: None }
    }
}

impl StagingOptions {
    /// 8 slots of 512 KiB in each direction, and no time limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The size of a slot in bytes, rounded up to KiB, at most 512 MiB.
    #[must_use]
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = bytes.clamp(1, 1 << 29).next_multiple_of(KIB);
        self
    }

    /// The number of slots in each direction: 1 to 1023.
    #[must_use]
    pub fn depth(mut self, slots: u32) -> Self {
        self.depth = slots.clamp(1, 1023);
        self
    }

    /// The longest time to wait for the peer's next message or acknowledgement; without it, a call
    /// waits for ever for a peer that sends nothing.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// A [`GpuEndpoint`] that is not connected yet.
#[derive(Debug)]
pub struct PreparedGpuEndpoint {
    gpu: Gpu,
    queue_pair: InitializedQueuePair<Rc>,
    ring: Ring,
}

impl PreparedGpuEndpoint {
    /// The address to give to the peer.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.queue_pair.endpoint()
    }

    /// Connects to the peer's end. The ends need no common order.
    ///
    /// # Errors
    ///
    /// Errors of the device and the driver.
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<GpuEndpoint> {
        let Self { gpu, queue_pair, mut ring } = self;
        let queue_pair = queue_pair.connect(remote, options).map_err(rdma::Error::from)?;
        let (outgoing, incoming) = (Stream::new(&gpu)?, Stream::new(&gpu)?);
        let mut queue_pair: QueuePair<Rc> = queue_pair;
        ring.greet(&mut queue_pair)?;
        Ok(GpuEndpoint { queue_pair, ring, outgoing, incoming, has_failed: false })
    }
}

/// One end of a connection that carries messages between memories of GPUs through host memory.
///
/// It works with every GPU and NIC. Bytes cross the PCIe link of the GPU and that of the NIC, and
/// rest in host memory in between: where both share an uplink, this can halve the bandwidth.
///
/// Peers cannot read or write the memory of the GPU by themselves, because a NIC that cannot access
/// the memory needs a processor of this end for the second copy. So there are messages only.
pub struct GpuEndpoint {
    queue_pair: QueuePair<Rc>,
    ring: Ring,
    outgoing: Stream,
    incoming: Stream,
    has_failed: bool,
}

impl GpuEndpoint {
    /// Makes an end of a connection, with its slots.
    ///
    /// # Errors
    ///
    /// Errors of the device and the driver.
    pub fn prepare(
        gpu: &Gpu,
        pd: &ProtectionDomain,
        init: &InitOptions,
        options: StagingOptions,
    ) -> Result<PreparedGpuEndpoint> {
        let StagingOptions { chunk, depth, timeout } = options;
        // Chunks, and control messages whose completions are not polled yet.
        let (sends, receives) = (depth + 2 * CONTROL_RECEIVES, depth + CONTROL_RECEIVES);
        let cq = pd.context().cq_builder(sends + receives).events().build()?;
        let builder = pd.queue_pair().cq(&cq).max_send_wr(sends).max_recv_wr(receives);
        let mut queue_pair = builder.build()?.init(init).map_err(rdma::Error::from)?;
        let mut ring = Ring::new(cq.poller(), chunk, depth, timeout);
        for _ in 0..depth {
            ring.add_free(Slot::new(gpu, pd, chunk)?);
        }
        for _ in 0..receives {
            let slot = Slot::new(gpu, pd, chunk)?;
            let (buffer, token) = ring.lend(slot);
            queue_pair.post_recv(buffer, token).map_err(|refused| refused.error())?;
        }
        Ok(PreparedGpuEndpoint { gpu: gpu.clone(), queue_pair, ring })
    }

    /// Sends a message. Returns when all of it has been copied from the GPU and given to the NIC.
    ///
    /// A message of more chunks than the peer has slots waits until the peer receives: two ends
    /// that both send such messages before they receive wait for ever, or until the timeout.
    ///
    /// # Errors
    ///
    /// Errors of the device, the driver and the connection. The connection cannot be used after
    /// one.
    pub fn send(&mut self, slice: &Ready<GpuSlice<u8>>) -> Result<()> {
        self.guarded(|end| end.send_chunks(slice.get()))
    }

    /// Receives a message into the front of a slice, and returns its length in bytes. The bytes are
    /// visible to all work that is launched on the GPU afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLong`], after which the message is lost and the connection goes on;
    /// errors of the device, the driver and the connection, after which it cannot be used.
    pub fn recv(&mut self, slice: &GpuSlice<u8>) -> Result<usize> {
        let len = self.guarded(|end| end.recv_chunks(slice))?;
        if len > slice.len() { Err(Error::MessageTooLong { len, room: slice.len() }) } else { Ok(len) }
    }

    /// Runs a step, unless one has failed before: it may have left half a message on the way.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.has_failed {
            return Err(Error::EndpointFailed);
        }
        self.has_failed = true;
        let done = step(self)?;
        self.has_failed = false;
        Ok(done)
    }

    fn send_chunks(&mut self, slice: &GpuSlice<u8>) -> Result<()> {
        // Before the greeting, the size of the peer's slots is not known.
        while self.ring.peer_chunk().is_none() {
            self.ring.progress(&mut self.queue_pair)?;
        }
        let chunk = self.ring.peer_chunk().unwrap_or(KIB);
        let mut copies = VecDeque::new();
        let (mut next, mut is_cut) = (0, false);
        while !is_cut || !copies.is_empty() {
            while let Some(slot) = if is_cut { None } else { self.ring.take_free() } {
                let end = slice.len().min(next + chunk);
                is_cut = end == slice.len();
                copies.push_back(Outgoing {
                    copy: slot.fill(&self.outgoing, &slice.range(next..end)?)?,
                    len: end - next,
                    is_last: is_cut,
                });
                next = end;
            }
            if self.ring.has_credit() {
                if let Some(Outgoing { copy, len, is_last }) = copies.pop_front() {
                    self.ring.send(&mut self.queue_pair, copy.wait()?, len, is_last)?;
                    continue;
                }
            }
            self.ring.progress(&mut self.queue_pair)?;
        }
        Ok(())
    }

    fn recv_chunks(&mut self, slice: &GpuSlice<u8>) -> Result<usize> {
        let mut copies = VecDeque::<Pending<Slot>>::new();
        let mut len = 0_usize;
        loop {
            let Some(Chunk { slot, len: received, is_last }) = self.ring.take_arrived(&mut self.queue_pair)? else {
                // A peer without credits sends nothing until a slot is empty.
                match copies.pop_front() {
                    Some(copy) => self.ring.recycle(&mut self.queue_pair, copy.wait()?)?,
                    None => self.ring.progress(&mut self.queue_pair)?,
                }
                continue;
            };
            match slice.range(len..len.saturating_add(received)) {
                Ok(part) => copies.push_back(slot.empty(&self.incoming, &part)?),
                // The message is too long, and the rest of it is dropped.
                Err(_) => self.ring.recycle(&mut self.queue_pair, slot)?,
            }
            len = len.saturating_add(received);
            if is_last {
                break;
            }
        }
        for copy in copies {
            self.ring.recycle(&mut self.queue_pair, copy.wait()?)?;
        }
        Ok(len)
    }
}

impl fmt::Debug for GpuEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuEndpoint({:?}, {:?})", self.incoming.gpu(), self.ring)
    }
}

/// A chunk on its way from the GPU to its slot.
struct Outgoing {
    copy: Pending<Slot>,
    len: usize,
    is_last: bool,
}

#[cfg(test)]
mod tests;
