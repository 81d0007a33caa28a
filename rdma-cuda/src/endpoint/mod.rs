//! Messages between memories of GPUs.
//!
//! A message goes in chunks, each of which is sent to a slot of the peer and copied from there to
//! its place. Both sides have a ring of slots and a stream for each direction, so copies and
//! transfers run at the same time.
//!
//! | Path | Sender | Receiver |
//! | --- | --- | --- |
//! | direct | the NIC reads the message where it is | slots of GPU memory |
//! | staged | chunks are copied to slots of pinned host memory | slots of pinned host memory |
//!
//! Both paths have the same messages, so each side chooses its own path, and a sender without a
//! direct path to some memory stages what it sends from there.
//!
//! A message of the endpoints is a send with immediate data:
//!
//! | Bits 31 and 30 | Meaning | Other bits |
//! | --- | --- | --- |
//! | 0 | a chunk of a message, as long as both sides allow | |
//! | 1 | the last chunk of a message | |
//! | 2 | credits: the receiver has emptied slots | their number |
//! | 3 | greeting, the first message | 29 to 20: the slots for chunks; 19 to 0: KiB of a slot |
//!
//! The greeting gives the peer its first credits. A chunk costs one credit, so the peer always has
//! a receive for it. Credits are returned for half of the slots at a time, so two such messages can
//! be on the way, and none before the greeting is received: a side needs two receives beyond those
//! for chunks. The tests of [`rdma::credit`] try all orders.

mod landing;
mod ring;
mod slot;
mod sources;

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use rdma::transport::Rc;
use rdma::{ConnectOptions, Endpoint, ExposedSlice, InitOptions, InitializedQueuePair, ProtectionDomain, QueuePair};

use crate::endpoint::landing::Landing;
use crate::endpoint::ring::{CONTROL_RECEIVES, Chunk, KIB, Receives, Ring};
use crate::endpoint::slot::{HostSlot, Slot};
use crate::endpoint::sources::Sources;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::GpuSlice;
use crate::order::Ready;
use crate::path::{Path, Policy, Preference};
use crate::pending::Pending;
use crate::region::RegionError;
use crate::stream::Stream;

/// Options of a [`GpuEndpoint`]. The sides may differ: a chunk is as large as both allow.
#[derive(Debug, Clone, Copy)]
pub struct GpuEndpointOptions {
    chunk: usize,
    depth: u32,
    timeout: Option<Duration>,
    preference: Preference,
}

impl Default for GpuEndpointOptions {
    fn default() -> Self {
        Self { chunk: 512 * KIB, depth: 8, timeout: None, preference: Preference::default() }
    }
}

impl GpuEndpointOptions {
    /// 8 slots of 512 KiB in each direction, no time limit, and a direct path if there is one.
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

    /// Time limit of each wait for the peer's next message or acknowledgement, and of dropping the
    /// rest of a message that is too long. By default there is none: a silent peer, or one whose
    /// message does not end, then blocks the call for ever.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The demands on the path, which
    /// [the environment may override](Preference::with_environment).
    #[must_use]
    pub fn preference(mut self, preference: Preference) -> Self {
        self.preference = preference;
        self
    }
}

/// A [`GpuEndpoint`] that is not connected yet.
pub struct PreparedGpuEndpoint {
    gpu: Gpu,
    pd: ProtectionDomain,
    queue_pair: InitializedQueuePair<Rc>,
    ring: Ring,
    landing: Landing,
    preference: Preference,
}

impl PreparedGpuEndpoint {
    /// The address to give to the peer.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.queue_pair.endpoint()
    }

    /// The path of messages on this side, and why it is used.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.landing.path()
    }

    /// Connects to the peer's side. The sides need no common order.
    ///
    /// # Errors
    ///
    /// Errors of the device and the driver.
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<GpuEndpoint> {
        let Self { gpu, pd, queue_pair, mut ring, landing, preference } = self;
        let queue_pair = queue_pair.connect(remote, options).map_err(rdma::Error::from)?;
        let (outgoing, incoming) = (Stream::new(&gpu)?, Stream::new(&gpu)?);
        let mut queue_pair: QueuePair<Rc> = queue_pair;
        ring.greet(&mut queue_pair)?;
        let sources = Sources::new(&pd, preference);
        Ok(GpuEndpoint { pd, queue_pair, ring, landing, sources, outgoing, incoming, has_failed: false })
    }
}

/// One side of a connection that carries messages between memories of GPUs.
///
/// It works with every GPU and NIC. If there is a direct path, the NIC reads messages where they
/// are, and writes them to memory of the GPU. Else bytes cross the PCIe link of the GPU and that of
/// the NIC, and rest in host memory in between: where both share an uplink, this can halve the
/// bandwidth. [`path`](Self::path) says which path is used, and why.
///
/// On a direct path, the last 16 memories that messages were sent from stay registered, and are not
/// freed. A message from memory that the NIC cannot access is staged, with a warning, unless the
/// policy is [`Policy::RequireDirect`].
///
/// Peers cannot read or write the memory of the GPU by themselves, because a NIC that cannot access
/// the memory needs a processor of this side for the second copy. So there are messages only.
pub struct GpuEndpoint {
    pd: ProtectionDomain,
    queue_pair: QueuePair<Rc>,
    ring: Ring,
    landing: Landing,
    sources: Sources,
    outgoing: Stream,
    incoming: Stream,
    has_failed: bool,
}

impl GpuEndpoint {
    /// Makes an end of a connection, with its slots.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] if there is no path as the options demand, or the environment's demands are
    /// invalid; errors of the device and the driver.
    pub fn prepare(
        gpu: &Gpu,
        pd: &ProtectionDomain,
        init: &InitOptions,
        options: GpuEndpointOptions,
    ) -> Result<PreparedGpuEndpoint> {
        let GpuEndpointOptions { chunk, depth, timeout, preference } = options;
        let preference = preference.with_environment().map_err(RegionError::from)?;
        // Chunks, and control messages whose completions are not polled yet.
        let (sends, receives) = (depth + 2 * CONTROL_RECEIVES, depth + CONTROL_RECEIVES);
        let make = || {
            let cq = pd.context().cq_builder(sends + receives).events().build()?;
            let builder = QueuePair::builder(pd).cq(&cq).max_send_wr(sends).max_recv_wr(receives);
            let queue_pair = builder.build()?.init(init).map_err(rdma::Error::from)?;
            Ok((queue_pair, Ring::new(cq.poller(), chunk, depth, timeout)))
        };
        let mut landing = Landing::new(gpu, pd, init, chunk * receives as usize, preference)?;
        let host_slots = (0..receives).map(|_| HostSlot::new(gpu, pd, chunk));
        let (queue_pair, ring) = post_receives(make, &mut landing, preference.policy, chunk, host_slots)?;
        Ok(PreparedGpuEndpoint { gpu: gpu.clone(), pd: pd.clone(), queue_pair, ring, landing, preference })
    }

    /// The path of messages on this side, and why it is used. The other side may use another.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.landing.path()
    }

    /// Sends a message. Returns when its memory is no longer read: all of it has been copied to
    /// host memory and given to the NIC, or sent.
    ///
    /// A message of more chunks than the peer has slots waits until the peer receives. If both
    /// sides send such messages before they receive, they wait for ever, or until the timeout.
    ///
    /// # Errors
    ///
    /// [`Error::OtherGpu`] if the slice is on another GPU, after which the connection goes on;
    /// errors of the device, the driver and the connection, after which it cannot be used, and
    /// until it is dropped the NIC may still read the memory.
    pub fn send(&mut self, slice: &Ready<GpuSlice<u8>>) -> Result<()> {
        self.outgoing.check_gpu(slice.get())?;
        self.guarded(|end| end.send_message(slice))
    }

    /// Receives a message into the front of a slice, and returns its length in bytes. The bytes are
    /// visible to all work that is launched on the GPU afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::OtherGpu`] if the slice is on another GPU, and [`Error::MessageTooLong`], with
    /// which the message is lost: the connection goes on. Errors of the device, the driver and the
    /// connection, after which it cannot be used.
    pub fn recv(&mut self, slice: &GpuSlice<u8>) -> Result<usize> {
        self.incoming.check_gpu(slice)?;
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

    fn send_message(&mut self, slice: &Ready<GpuSlice<u8>>) -> Result<()> {
        // Before the greeting, the size of the peer's slots is not known.
        let chunk = loop {
            match self.ring.peer_chunk() {
                Some(chunk) => break chunk,
                None => self.ring.progress(&mut self.queue_pair)?,
            }
        };
        let is_direct = self.path().is_direct() && !slice.get().is_empty();
        match if is_direct { self.sources.source(slice)? } else { None } {
            Some(source) => self.send_directly(&source, chunk),
            None => self.send_staged(slice.get(), chunk),
        }
    }

    /// Sends a message in chunks that the NIC reads from the GPU's memory.
    fn send_directly(&mut self, source: &ExposedSlice<rdma::Gpu>, chunk: usize) -> Result<()> {
        let mut next = 0;
        while next < source.len() {
            if !self.ring.has_credit() {
                self.ring.progress(&mut self.queue_pair)?;
                continue;
            }
            let end = source.len().min(next + chunk);
            let is_last = end == source.len();
            self.ring.send_direct(&mut self.queue_pair, source.slice(next..end)?, is_last)?;
            next = end;
        }
        self.ring.finish_direct(&mut self.queue_pair)
    }

    /// Sends a message in chunks that are copied to host memory.
    fn send_staged(&mut self, slice: &GpuSlice<u8>, chunk: usize) -> Result<()> {
        self.ring.add_slots(self.outgoing.gpu(), &self.pd)?;
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

    /// Begins to copy the front of a slot to its place.
    fn unload(&mut self, slot: Slot, to: &GpuSlice<u8>) -> Result<Pending<Slot>> {
        match slot {
            Slot::Host(slot) => slot.empty(&self.incoming, to),
            Slot::Gpu(slot) => {
                let front = self.landing.visible(slot.slice.range(..to.len())?)?;
                slot.empty(&self.incoming, &front, to)
            }
        }
    }

    fn recv_chunks(&mut self, slice: &GpuSlice<u8>) -> Result<usize> {
        let mut copies = VecDeque::<Pending<Slot>>::new();
        let (mut len, mut too_long) = (0_usize, None);
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
                Ok(part) => copies.push_back(self.unload(slot, &part)?),
                // The message is too long, and the rest of it is dropped as long as the timeout
                // allows.
                Err(_) => {
                    let since = too_long.get_or_insert_with(Instant::now);
                    self.ring.check_time(*since)?;
                    self.ring.recycle(&mut self.queue_pair, slot)?;
                }
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

/// Makes a queue pair with the receives of all slots: those of the landing, or `host_slots` if
/// there are none or the queue pair refuses them.
fn post_receives<Q: Receives>(
    make: impl Fn() -> Result<(Q, Ring)>,
    landing: &mut Landing,
    policy: Policy,
    chunk: usize,
    host_slots: impl Iterator<Item = Result<HostSlot>>,
) -> Result<(Q, Ring)> {
    let (mut queue_pair, mut ring) = make()?;
    let mut slots = landing.slots(chunk)?.into_iter().map(Slot::Gpu);
    if let Err(error) = slots.try_for_each(|slot| ring.post_receive(&mut queue_pair, slot)) {
        landing.refuse(error, policy)?;
        // The receives that were taken end with the queue pair.
        (queue_pair, ring) = make()?;
    }
    if !landing.path().is_direct() {
        for slot in host_slots {
            ring.post_receive(&mut queue_pair, Slot::Host(slot?))?;
        }
    }
    Ok((queue_pair, ring))
}

impl fmt::Debug for PreparedGpuEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedGpuEndpoint({}, {:?})", self.path(), self.ring)
    }
}

impl fmt::Debug for GpuEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuEndpoint({}, {:?})", self.path(), self.ring)
    }
}

/// A chunk on its way from the GPU to its slot.
struct Outgoing {
    copy: Pending<HostSlot>,
    len: usize,
    is_last: bool,
}

#[cfg(test)]
mod tests;
