//! A single-producer single-consumer ring of frames in memory that two processes share.
//!
//! A frame is one prefix word and `H` header words, padded to [`ALIGN`], and a payload, padded
//! likewise. A frame is contiguous: where it would wrap, a padding frame fills the rest of the
//! ring. A non-zero prefix makes a frame visible: the consumer polls the prefix at its current
//! place, and so has the header in the cache line that it has just fetched. Therefore the producer
//! zeroes the place after a frame before it publishes the frame, since that place may hold any data
//! of the previous lap. The producer writes the prefix of the first frame of a batch last, together
//! with that frame's header: while the consumer polls, every further write to that line costs a
//! transfer of the line between the cores. For the same reason the line holds no payload.
//!
//! A producer whose frames are consumed soon goes back to the beginning long before the end: few
//! cache lines are in use, and pages that no burst of frames has needed are never allocated.
//!
//! `head` (written by the consumer) counts bytes since the ring was made and never wraps in
//! practice (2^64 bytes). No value that the other side writes is trusted: each counter and each
//! prefix is read once and checked against this side's own counters. An impossible value is
//! [`Corrupt`], after which the ring is not used any more.
//!
//! So a small message costs the transfer of two cache lines.

use super::words::Word;

/// Alignment of frames: a cache line, so that the two sides never write to the same line.
pub(crate) const ALIGN: u64 = 64;

/// The smallest capacity of a ring, in bytes.
pub(crate) const MIN_CAPACITY: u64 = 256;

/// A producer goes back to the beginning after one such part of the ring, if it can, and after so
/// many bytes at most.
const SHARE_OF_A_LAP: u64 = 16;
const MAX_LAP: u64 = 64 << 10;

/// Distance in bytes from the written frame to the prefetched lines, and limit of the bytes
/// prefetched for one frame.
const AHEAD: u64 = 128;
const MAX_AHEAD: u64 = 256;

/// High half of a prefix word: the kind, a frame or padding to the end of the ring. The low half is
/// the payload's length.
const KIND_FRAME: u64 = 0x5246 << 32;
const KIND_PADDING: u64 = 0x5250 << 32;
const KIND_MASK: u64 = !0xffff_ffff;

/// The error of a ring whose other side wrote an impossible value: that side is broken or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote an impossible value into a ring")]
pub(crate) struct Corrupt;

/// The shared memory of one ring.
pub(crate) trait Region {
    /// The atomic word type.
    type Word: Word;
    /// The word at byte offset `at`, a multiple of [`ALIGN`].
    fn prefix(&self, at: u64) -> &Self::Word;
    /// The word that counts consumed bytes.
    fn head(&self) -> &Self::Word;
    /// The head that the producer waits for; zero while the producer does not wait for space.
    fn waits(&self) -> &Self::Word;
    /// Size in bytes: a power of two, at least [`MIN_CAPACITY`]. Never changes.
    fn capacity(&self) -> u64;
    /// Bytes from the beginning on that are allocated at first.
    fn allocated(&self) -> u64 {
        self.capacity()
    }
    /// Allocates the bytes up to `end`; false if there is no memory for them.
    fn allocate(&self, end: u64) -> bool {
        end <= self.capacity()
    }
    /// Copies words out, from byte offset `at`, a multiple of 8. A new ring is all zero.
    fn read(&self, at: u64, words: &mut [u64]);
    /// Copies words in, at byte offset `at`, a multiple of 8.
    fn write(&self, at: u64, words: &[u64]);
    /// Prefetches the line at `at` for reading.
    fn prefetch(&self, at: u64) {
        let _ = at;
    }
    /// Prefetches the line at `at` for writing.
    fn prefetch_for_write(&self, at: u64) {
        let _ = at;
    }
}

/// The place of a payload in the ring. The bytes belong to this side until the ring's `publish`
/// (producer) or `release` (consumer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Byte offset in the ring.
    pub(crate) at: u64,
    /// Length in bytes; `at + len` is within the ring.
    pub(crate) len: u32,
}

/// Bytes before a frame's payload.
const fn head_len<const H: usize>() -> u64 {
    (8 * (1 + H as u64)).next_multiple_of(ALIGN)
}

/// Length of a whole frame in bytes. Cannot overflow.
fn frame_len<const H: usize>(payload: u32) -> u64 {
    head_len::<H>() + u64::from(payload).next_multiple_of(ALIGN)
}

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Producer<R, const H: usize> {
    region: R,
    /// `tail` counts bytes written, `published` bytes visible to the consumer. The prefix at `tail`
    /// is zero, and so is the prefix at `published` if that is less.
    tail: u64,
    published: u64,
    /// The prefix to be written at `published`, and the header after it if the prefix is a frame's.
    withheld: u64,
    header: [u64; H],
    /// The consumer's head as of the last look.
    head: u64,
    /// Whether this side has set `waits`.
    waiting: bool,
    /// Bytes from the beginning on that are allocated.
    allocated: u64,
    /// The space that the largest frame so far needed.
    largest: u64,
    /// Frames take the whole ring in turn.
    spreads: bool,
}

impl<R: Region, const H: usize> Producer<R, H> {
    /// Begins on an unused ring.
    pub(crate) fn new(region: R) -> Self {
        debug_assert!(region.capacity().is_power_of_two() && region.capacity() >= MIN_CAPACITY);
        let allocated = region.allocated();
        Self {
            region,
            tail: 0,
            published: 0,
            withheld: 0,
            header: [0; H],
            head: 0,
            waiting: false,
            allocated,
            largest: 0,
            spreads: false,
        }
    }

    /// The ring's memory.
    pub(crate) fn region(&self) -> &R {
        &self.region
    }

    /// Sets whether frames take the whole ring in turn, instead of its beginning as long as the
    /// consumer keeps up.
    pub(crate) fn spread(&mut self, spreads: bool) {
        self.spreads = spreads;
    }

    /// The longest payload of a frame. A frame takes at most half of the ring, so that an empty
    /// ring has space for it at any position, including the padding (less than a frame) and the
    /// zero prefix after the frame.
    pub(crate) fn max_payload(&self) -> u32 {
        u32::try_from(self.region.capacity() / 2 - head_len::<H>()).unwrap_or(u32::MAX)
    }

    /// Appends a frame if there is space. Returns the place where the caller has to write the
    /// payload before the next `publish`.
    pub(crate) fn push(&mut self, header: &[u64; H], payload: u32) -> Result<Option<Span>, Corrupt> {
        let capacity = self.region.capacity();
        let len = frame_len::<H>(payload);
        debug_assert!(payload <= self.max_payload());
        let mut offset = self.tail & (capacity - 1);
        // The place after the frame must be free as well: its prefix becomes zero.
        let needed = len + ALIGN;
        self.largest = self.largest.max(needed);
        let rest = capacity - offset;
        let padding = if len > rest || self.goes_back(offset, needed)? { rest } else { 0 };
        if !self.has_room(padding + needed)? {
            return Ok(None);
        }
        if self.waiting {
            self.waiting = false;
            self.region.waits().store(0);
        }
        if padding != 0 {
            self.begin(offset, KIND_PADDING, None);
            self.tail += padding;
            offset = 0;
        }
        self.begin(offset, KIND_FRAME | u64::from(payload), Some(header));
        self.tail += len;
        self.region.write(self.tail & (capacity - 1), &[0]);
        // The consumer's core holds these lines since the last lap. To fetch a line back takes as
        // long as to send one, so the fetch starts before the frames that will use the lines are
        // written.
        for ahead in (AHEAD..AHEAD + len.min(MAX_AHEAD)).step_by(64) {
            self.region.prefetch_for_write((self.tail + ahead) & (capacity - 1));
        }
        Ok(Some(Span { at: offset + head_len::<H>(), len: payload }))
    }

    /// Whether to write a frame to the beginning of the ring although it would fit at `offset`.
    #[inline]
    fn goes_back(&mut self, offset: u64, needed: u64) -> Result<bool, Corrupt> {
        let capacity = self.region.capacity();
        let (lap, end) = ((capacity / SHARE_OF_A_LAP).clamp(MIN_CAPACITY, MAX_LAP), offset + needed);
        if end <= lap {
            return Ok(false);
        }
        // Only if enough space is left for the frames after this one, of which one may be large:
        // until the consumer has passed the padding, only the part before `offset` can be used.
        if !self.spreads && self.has_room(capacity - offset + needed + self.largest + lap / 2)? {
            return Ok(true);
        }
        let end = end.min(capacity);
        if end > self.allocated {
            let more = end.next_power_of_two();
            if !self.region.allocate(more) {
                return Ok(true);
            }
            self.allocated = more;
        }
        Ok(false)
    }

    /// Writes a prefix and a header. The first ones of a batch are kept back for `publish`.
    #[inline]
    fn begin(&mut self, offset: u64, prefix: u64, header: Option<&[u64; H]>) {
        if self.tail == self.published {
            self.withheld = prefix;
            if let Some(header) = header {
                self.header = *header;
            }
        } else {
            if let Some(header) = header {
                self.region.write(offset + 8, header);
            }
            self.region.write(offset, &[prefix]);
        }
    }

    /// The offset at which the consumer looks next.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn place(&self) -> u64 {
        self.published & (self.region.capacity() - 1)
    }

    /// Bytes written and not yet published.
    pub(crate) fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Makes all written frames visible to the consumer. Afterwards the caller must look at the
    /// consumer's `asleep` flag. False if there was nothing new.
    pub(crate) fn publish(&mut self) -> bool {
        if self.tail == self.published {
            return false;
        }
        let offset = self.published & (self.region.capacity() - 1);
        self.published = self.tail;
        if self.withheld & KIND_MASK == KIND_FRAME {
            self.region.write(offset + 8, &self.header);
        }
        self.region.prefix(offset).store_ordered(self.withheld);
        true
    }

    /// Asks the consumer to wake this side once the consumer has made progress and at least half of
    /// the ring is free: to be woken takes as long as many frames. True if frames were consumed
    /// already, so that the caller should try again.
    pub(crate) fn wait_for_room(&mut self) -> Result<bool, Corrupt> {
        let before = self.head;
        self.waiting = true;
        let half_free = self.tail.saturating_sub(self.region.capacity() / 2);
        self.region.waits().store_ordered(half_free.max(before + 1));
        self.look(self.region.head().load_ordered())?;
        Ok(self.head != before)
    }

    /// Whether the consumer has consumed anything since this side last looked: the last check of a
    /// side that goes to sleep while it waits for space.
    pub(crate) fn room_was_made(&self) -> bool {
        self.region.head().load_ordered() != self.head
    }

    /// Bytes that are not consumed yet, as the consumer reports.
    pub(crate) fn backlog(&self) -> u64 {
        self.tail.saturating_sub(self.region.head().load())
    }

    /// The end of the frames written so far, for [`is_consumed`](Self::is_consumed).
    pub(crate) fn end(&self) -> u64 {
        self.tail
    }

    /// Whether the consumer reports that the frames up to `end` are consumed.
    pub(crate) fn is_consumed(&self, end: u64) -> bool {
        self.region.head().load() >= end
    }

    /// Whether the consumer reports that all published frames are consumed.
    pub(crate) fn is_taken(&self) -> bool {
        self.region.head().load() == self.published
    }

    fn has_room(&mut self, len: u64) -> Result<bool, Corrupt> {
        let capacity = self.region.capacity();
        if capacity - (self.tail - self.head) >= len {
            return Ok(true);
        }
        self.look(self.region.head().load())?;
        Ok(capacity - (self.tail - self.head) >= len)
    }

    /// Takes over the consumer's head, which can only grow, up to `published`, in multiples of
    /// `ALIGN`.
    fn look(&mut self, head: u64) -> Result<(), Corrupt> {
        if head < self.head || head > self.published || head % ALIGN != 0 {
            return Err(Corrupt);
        }
        self.head = head;
        Ok(())
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Consumer<R, const H: usize> {
    region: R,
    /// `head` counts bytes consumed, `published` bytes given back to the producer.
    head: u64,
    published: u64,
    /// Length of the frame that `next` returned last.
    current: u64,
}

impl<R: Region, const H: usize> Consumer<R, H> {
    /// Begins on an unused ring.
    pub(crate) fn new(region: R) -> Self {
        debug_assert!(region.capacity().is_power_of_two() && region.capacity() >= MIN_CAPACITY);
        Self { region, head: 0, published: 0, current: 0 }
    }

    /// The ring's memory.
    pub(crate) fn region(&self) -> &R {
        &self.region
    }

    /// The offset of the next frame's prefix.
    #[inline]
    fn place(&self) -> u64 {
        (self.head + self.current) & (self.region.capacity() - 1)
    }

    /// Whether no frame is visible: one load of a word that stays in this core's cache while the
    /// ring is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.region.prefix(self.place()).load() == 0
    }

    /// `is_empty` as the last check of a side that has just set its `asleep` flag.
    pub(crate) fn is_empty_ordered(&self) -> bool {
        self.region.prefix(self.place()).load_ordered() == 0
    }

    /// Reads the next frame: a copy of the header, and the place of the payload, valid until
    /// `release`.
    pub(crate) fn next(&mut self) -> Result<Option<([u64; H], Span)>, Corrupt> {
        let capacity = self.region.capacity();
        self.head += core::mem::take(&mut self.current);
        loop {
            let offset = self.head & (capacity - 1);
            // Bytes that the producer can have written since this side's last release, up to the
            // end of the ring.
            let available = (capacity - (self.head - self.published)).min(capacity - offset);
            let prefix = self.region.prefix(offset).load();
            match prefix & KIND_MASK {
                0 if prefix == 0 => return Ok(None),
                KIND_PADDING if capacity - offset <= available => self.head += capacity - offset,
                KIND_FRAME => {
                    #[expect(clippy::cast_possible_truncation, reason = "the low half of the prefix is the length")]
                    let payload = prefix as u32;
                    let len = frame_len::<H>(payload);
                    if len > available {
                        return Err(Corrupt);
                    }
                    let at = offset + head_len::<H>();
                    if payload != 0 {
                        self.region.prefetch(at);
                    }
                    let mut header = [0; H];
                    self.region.read(offset + 8, &mut header);
                    self.current = len;
                    return Ok(Some((header, Span { at, len: payload })));
                }
                _ => return Err(Corrupt),
            }
        }
    }

    /// Bytes consumed and not yet given back to the producer.
    pub(crate) fn unreleased(&self) -> u64 {
        self.head + self.current - self.published
    }

    /// Gives everything that was read back to the producer. True if the producer waits for no more
    /// than that: then the caller must look at the producer's `asleep` flag.
    pub(crate) fn release(&mut self) -> bool {
        self.head += core::mem::take(&mut self.current);
        if self.head == self.published {
            return false;
        }
        self.published = self.head;
        self.region.head().store_ordered(self.head);
        // Only the producer clears `waits`: by now the word may stand for a later wait than the one
        // that this head ends.
        let wanted = self.region.waits().load_ordered();
        wanted != 0 && self.head >= wanted
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
