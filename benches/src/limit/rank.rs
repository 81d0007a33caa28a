//! One rank of the limit: its memory and its counters.

use std::sync::atomic::{AtomicU64, Ordering};

use rdma_collectives::Collective;

use crate::point::{Place, Point};
use crate::shared::SharedPages;

/// Bytes of a line, and of the small messages of a rank with their number.
const LINE: usize = 64;
/// Most bytes of an all-reduce that goes by small messages.
pub(super) const SMALL: usize = 4096;
const SLOT: usize = SMALL + LINE;
/// Tensors begin at multiples of this, the size of a huge page.
const ALIGNMENT: usize = 2 << 20;

/// Bytes of a rank's counters and small messages: a line of progress, a line of results, two slots.
const COUNTERS: usize = 4 * LINE + 2 * SLOT;

/// Bytes of the memory of all ranks.
pub(super) fn memory(point: Point) -> usize {
    tensors(point) + 2 * point.ranks * tensor(point)
}

fn tensors(point: Point) -> usize {
    (point.ranks * COUNTERS).next_multiple_of(ALIGNMENT)
}

/// Bytes from the begin of a tensor to that of the next one, which lies on other lines of a cache.
fn tensor(point: Point) -> usize {
    point.size.next_multiple_of(4096) + 4096
}

/// The mean time of an operation in nanoseconds, and the wrong elements of all ranks.
pub(super) fn results(pages: &SharedPages, ranks: usize) -> (f64, u64) {
    let result = |rank: usize, word: usize| f64::from_bits(word_at(pages, rank * COUNTERS + 2 * LINE + word));
    let times: f64 = (0..ranks).map(|rank| result(rank, 0)).sum();
    let wrong = (0..ranks).map(|rank| word_at(pages, rank * COUNTERS + 3 * LINE)).sum();
    (times / f64::from(u32::try_from(ranks).unwrap_or(1)), wrong)
}

fn word_at(pages: &SharedPages, offset: usize) -> u64 {
    pages.word(offset / LINE).load(Ordering::Acquire)
}

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    pages: SharedPages,
    pub(super) rank: usize,
    pub(super) point: Point,
    /// Steps that all ranks count alike.
    step: u64,
    /// Looks at a counter before a rank yields its core.
    spins: u32,
}

impl Rank {
    pub(super) fn new(pages: SharedPages, rank: usize, point: Point, spins: u32) -> Self {
        Self { pages, rank, point, step: 0, spins }
    }

    /// The input of a rank.
    pub(super) fn input(&self, rank: usize) -> *mut f32 {
        let tensor = if self.point.place == Place::In { 2 * rank + 1 } else { 2 * rank };
        self.tensor(tensor)
    }

    /// The output of a rank.
    pub(super) fn output(&self, rank: usize) -> *mut f32 {
        self.tensor(2 * rank + 1)
    }

    /// The tensor of a rank that an operation in place leaves unused.
    pub(super) fn spare(&self, rank: usize) -> *mut f32 {
        self.tensor(2 * rank)
    }

    fn tensor(&self, index: usize) -> *mut f32 {
        self.pages.as_ptr().wrapping_add(tensors(self.point) + index * tensor(self.point)).cast()
    }

    /// The slot of a rank's small message in this step: its number, and then its bytes.
    pub(super) fn slot(&self, rank: usize) -> (&AtomicU64, *mut f32) {
        let offset = rank * COUNTERS + 4 * LINE + (self.step % 2) as usize * SLOT;
        (self.pages.word(offset / LINE), self.pages.as_ptr().wrapping_add(offset + 8).cast())
    }

    /// Numbers of the whole operation.
    pub(super) fn count(&self) -> usize {
        self.point.size / size_of::<f32>()
    }

    /// Begins the next step, and returns its number.
    pub(super) fn next_step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    /// Waits until all ranks have come here.
    pub(super) fn barrier(&mut self) {
        let step = self.next_step();
        self.pages.word(self.rank * COUNTERS / LINE).store(step, Ordering::Release);
        for peer in (0..self.point.ranks).filter(|&peer| peer != self.rank) {
            self.wait(self.pages.word(peer * COUNTERS / LINE), step);
        }
    }

    /// Waits until a word has reached a value.
    pub(super) fn wait(&self, word: &AtomicU64, value: u64) {
        let mut spins = 0;
        while word.load(Ordering::Acquire) < value {
            spins += 1;
            if spins > self.spins { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    /// The mean of a time over all ranks, which is the same at each.
    pub(super) fn mean(&mut self, time: f64) -> f64 {
        let line = |rank: usize| (rank * COUNTERS + 2 * LINE) / LINE;
        self.pages.word(line(self.rank)).store(time.to_bits(), Ordering::Release);
        self.barrier();
        let mean = results(&self.pages, self.point.ranks).0;
        self.barrier();
        mean
    }

    /// Leaves the results of this rank in shared memory.
    pub(super) fn leave_results(&self, time: f64, wrong: u64) {
        let line = (self.rank * COUNTERS + 2 * LINE) / LINE;
        self.pages.word(line).store(time.to_bits(), Ordering::Release);
        self.pages.word(line + 1).store(wrong, Ordering::Release);
    }

    /// Fills this rank's input with small whole numbers, whose sums are exact.
    pub(super) fn fill(&mut self) {
        self.barrier();
        let root_only = self.point.operation == Collective::Broadcast && self.rank != 0;
        for index in 0..if root_only { 0 } else { self.count() } {
            // SAFETY: write requires a writable number, which no other rank accesses: it lies in
            // this rank's input, and the barriers keep the others away.
            unsafe { self.input(self.rank).wrapping_add(index).write(number(self.rank, index)) };
        }
        self.barrier();
    }
}

/// A number of a rank's input.
pub(super) fn number(rank: usize, index: usize) -> f32 {
    f32::from(u8::try_from((index + 5 * rank) % 64).unwrap_or(0))
}
