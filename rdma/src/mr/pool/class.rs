//! The buffers of one size: slabs that are registered as they are needed, cut into chunks.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;

use super::stats::PoolStats;
use super::stock::{Stock, WaiterHandle};
use crate::error::Result;
use crate::fork::MadeIn;
use crate::handle::{Handle, Ownership, Raw};
use crate::mr::Pages;
use crate::mr::memory::{Host, MemoryOwner, RawMemory};
use crate::mr::{Buffer, Kind, Region, Segment};
use crate::panics::Panics;
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::RemoteAccess;

/// A chunk that nobody has: its only reference (M8).
pub(super) struct Chunk(Arc<Handle<Region>>);

/// The part of a chunk that leads back to its pool.
pub(crate) struct Home {
    class: Arc<Class>,
    slab: Arc<Slab>,
}

/// Memory that is registered in each domain of a pool.
struct Slab {
    /// One for each domain, of the whole slab. They are never accessed: they keep the regions.
    regions: Vec<Buffer>,
}

/// Owner of a slab's memory, for several regions.
#[derive(Clone)]
struct SlabMemory {
    at: NonNull<u8>,
    len: usize,
    _pages: Arc<Pages>,
}

// SAFETY: the value holds an address, which it does not dereference, and pages that are Send and
// Sync.
unsafe impl Send for SlabMemory {}

// SAFETY: MemoryOwner requires valid, initialised memory in place, which other code does not access
// unless as rdma_mem does: the pages live as long as a clone, and nobody reaches them through
// `pages`. Of the regions that share them, all but chunks stay unused (M8), and a chunk belongs to
// one holder.
unsafe impl MemoryOwner for SlabMemory {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.at, self.len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

impl Slab {
    fn new(domains: &[ProtectionDomain], len: usize) -> Result<Self> {
        let (at, len, pages) = Pages::new(len)?.into_parts();
        let memory = SlabMemory { at, len, _pages: Arc::new(pages) };
        let register = |domain: &ProtectionDomain| Ok(domain.register(memory.clone())?);
        Ok(Self { regions: domains.iter().map(register).collect::<Result<_>>()? })
    }
}

/// The buffers of one size.
pub(super) struct Class {
    pub(super) size: usize,
    /// The most buffers.
    limit: usize,
    /// Bytes from one chunk to the next.
    stride: usize,
    /// Chunks in a slab, except the last one.
    per_slab: usize,
    domains: Arc<[ProtectionDomain]>,
    pub(super) made_in: MadeIn,
    stock: Stock<Chunk>,
    growth: Mutex<Growth>,
    /// All chunks exist.
    is_full: AtomicBool,
}

#[derive(Default)]
struct Growth {
    chunks: usize,
    slabs: usize,
    bytes: usize,
}

/// A taker that waits for a buffer of a class.
pub(super) type Waiter = WaiterHandle<Chunk>;

impl Class {
    /// `stride` is at least `size`, and `limit * stride` does not overflow.
    pub(super) fn new(size: usize, limit: usize, slab: usize, domains: &Arc<[ProtectionDomain]>) -> Self {
        let stride = size.next_multiple_of(if size < PAGE { LINE } else { PAGE });
        // Some more seats than cores, so that threads that come and go rarely share one.
        let threads = thread::available_parallelism().map_or(1, usize::from) * 2;
        Self {
            size,
            limit,
            stride,
            per_slab: (slab / stride).clamp(1, limit),
            domains: Arc::clone(domains),
            made_in: MadeIn::default(),
            stock: Stock::new(limit, threads),
            growth: Mutex::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// A buffer of `len` bytes, at most the class's size; none if all are out.
    #[inline]
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Result<Option<Buffer>> {
        match self.stock.take() {
            Some(chunk) => Ok(Some(chunk.into_buffer(len))),
            None => self.take_new(len),
        }
    }

    #[cold]
    fn take_new(self: &Arc<Self>, len: usize) -> Result<Option<Buffer>> {
        if self.is_full.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut growth = self.growth();
        // Another thread may have made new chunks while this one waited for the lock.
        if let Some(chunk) = self.stock.take() {
            return Ok(Some(chunk.into_buffer(len)));
        }
        loop {
            if growth.chunks == self.limit {
                return Ok(None);
            }
            self.grow(&mut growth)?;
            // Others may have taken all of the new ones.
            if let Some(chunk) = self.stock.take() {
                return Ok(Some(chunk.into_buffer(len)));
            }
        }
    }

    /// Registers slabs until there are `count` chunks.
    pub(super) fn reserve(self: &Arc<Self>, count: usize) -> Result<()> {
        let mut growth = self.growth();
        while growth.chunks < count.min(self.limit) {
            self.grow(&mut growth)?;
        }
        Ok(())
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers one more slab.
    fn grow(self: &Arc<Self>, growth: &mut Growth) -> Result<()> {
        let count = self.per_slab.min(self.limit - growth.chunks);
        let slab = Arc::new(Slab::new(&self.domains, count * self.stride)?);
        growth.chunks += count;
        growth.slabs += 1;
        growth.bytes += count * self.stride;
        let chunks = (0..count).map(|number| self.chunk(&slab, number * self.stride)).collect();
        for chunk in self.stock.add(chunks) {
            self.put_slow(chunk);
        }
        if growth.chunks == self.limit {
            self.is_full.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The chunk at `offset`, which lies in the slab with its stride.
    fn chunk(self: &Arc<Self>, slab: &Arc<Slab>, offset: usize) -> Chunk {
        let whole = slab.regions[0].segment();
        let (address, len) = (whole.pointer.map_addr(|address| address.saturating_add(offset)), self.size);
        let home = Home { class: Arc::clone(self), slab: Arc::clone(slab) };
        Chunk(Arc::new(Handle::new(Region {
            address,
            len,
            lkey: whole.lkey(),
            rkey: 0,
            shift: 0,
            is_on_demand: false,
            kind: Kind::LocalHost,
            access: RemoteAccess::empty(),
            domain: whole.domain(),
            raw: Raw::new(ptr::null_mut()),
            memory: RawMemory::borrowed(address, len),
            pd: Arc::clone(&whole.region.pd),
            ownership: Ownership::Destroy,
            home: Some(home),
        })))
    }

    /// Returns a chunk that somebody may wait for.
    #[cold]
    fn put_slow(&self, chunk: Chunk) {
        match self.stock.put_slow(chunk) {
            Ok(waker) => wake(waker),
            // The pool has ended: the slab ends with its last chunk.
            Err(chunk) => drop(chunk),
        }
    }

    pub(super) fn join(&self, waker: &Waker) -> Waiter {
        self.stock.join(waker)
    }

    /// The buffer that a waiter was given. Otherwise the waker is the one to wake from now on.
    pub(super) fn poll(waiter: &Waiter, waker: &Waker, len: usize) -> Option<Buffer> {
        Stock::poll(waiter, waker).map(|chunk| chunk.into_buffer(len))
    }

    /// Ends a wait. The buffer that the waiter was given before goes to the next one.
    pub(super) fn leave(&self, waiter: &Waiter) {
        if let Some(chunk) = self.stock.leave(waiter) {
            self.put_slow(chunk);
        }
    }

    /// Ends the class: chunks end when they come back.
    pub(super) fn close(&self) {
        drop(self.stock.close());
    }

    pub(super) fn stats(&self) -> PoolStats {
        let Growth { slabs, bytes, .. } = *self.growth();
        PoolStats::new(self.size, self.limit, slabs, bytes, self.stock.counts())
    }
}

/// Chunks do not share a cache line, and large ones no page.
const LINE: usize = 64;
const PAGE: usize = 4096;

impl Chunk {
    /// The chunk's first `len` bytes; `len` is at most its size.
    #[inline]
    fn into_buffer(self, len: usize) -> Buffer {
        let mut segment = Segment::whole(self.0);
        segment.len = len;
        // SAFETY: from_segment requires a segment of host memory that overlaps no other: the chunk
        // had none (M8).
        unsafe { Buffer::from_segment(segment) }
    }
}

impl Home {
    /// The slab's local key in another domain of the pool.
    #[inline(always)]
    pub(crate) fn lkey_in(&self, domain: *const PdInner) -> Option<u32> {
        let of_domain = |region: &&Buffer| ptr::eq(region.segment().domain(), domain);
        self.slab.regions.iter().find(of_domain).map(Buffer::lkey)
    }

    /// Takes the only reference to a chunk, which has no segment, back to its pool.
    #[inline]
    pub(in crate::mr) fn put(region: Arc<Handle<Region>>) {
        let Some(home) = &region.home else { return };
        if home.class.made_in.is_forked() {
            // The pool is the parent's, and its locks may be held for ever: the chunk leaks, as
            // every region in a child.
            return;
        }
        let stock = &raw const home.class.stock;
        // SAFETY: `put` requires a stock that is valid until the item is stored, and from then on
        // until it was closed: the chunk keeps the class until then, and the pool's handle keeps it
        // while it closes the stock.
        if let Err(chunk) = unsafe { Stock::put(stock, Chunk(region)) } {
            put_slow(chunk);
        }
    }
}

#[cold]
fn put_slow(chunk: Chunk) {
    let Some(home) = &chunk.0.home else { return };
    // Once the chunk has a taker, the pool may end.
    let class = Arc::clone(&home.class);
    class.put_slow(chunk);
}

/// Wakes a waiter, whose code may panic, under no lock.
fn wake(waker: Option<Waker>) {
    let mut panics = Panics::default();
    panics.catch(|| waker.into_iter().for_each(Waker::wake));
    panics.resume();
}
