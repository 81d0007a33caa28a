//! The format of the table in memory, which its owner writes and peers read: buckets of slots, and
//! blocks.
//!
//! A slot is one aligned word of 8 bytes, the largest unit that a read is trusted to keep whole. It
//! names a block, which holds a key, its value and a checksum of both. A block is never changed
//! while a slot names it. A reader that reads a block too late may find parts of another one there,
//! which the checksum shows.

use std::ops::Range;

use xxhash_rust::xxh64::xxh64;

/// Slots of a bucket.
pub const SLOTS: usize = 8;
/// Bytes of a slot.
pub const SLOT_LEN: usize = 8;
/// Bytes of a bucket.
pub const BUCKET_LEN: usize = SLOTS * SLOT_LEN;
/// Offsets and lengths of blocks are multiples of this.
pub const UNIT: usize = 64;
/// Bytes of a block's checksum, which is its first word.
pub const CHECKSUM_LEN: usize = 8;
/// Bytes of a block before its key: checksum, sequence number, lengths of key and value.
pub const HEADER_LEN: usize = 32;
/// Longest key.
pub const MAX_KEY: usize = 1 << 10;
/// Longest value.
pub const MAX_VALUE: usize = 256 << 10;

/// A slot that names a block: 32 bits of offset and 16 bits of length, in units of [`UNIT`] bytes,
/// and 16 bits of the key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Offset of the block in the table's memory.
    pub offset: usize,
    /// Length of the block in bytes.
    pub len: usize,
    /// Part of the hash of the block's key.
    pub tag: u16,
}

impl Slot {
    /// Offsets are less than this.
    pub const MAX_OFFSET: usize = UNIT << 32;

    /// The slot as a word; never 0.
    #[must_use]
    pub fn to_word(self) -> u64 {
        ((self.offset / UNIT) as u64) << 32 | ((self.len / UNIT) as u64) << 16 | u64::from(self.tag)
    }

    /// The slot of a word; `None` if it is empty or invalid.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let bytes = |units: u64| usize::try_from(units).ok()?.checked_mul(UNIT);
        let (offset, len) = (bytes(word >> 32)?, bytes(word >> 16 & 0xffff)?);
        // Buckets lie in front of all blocks, so no block has offset 0.
        (offset != 0 && len != 0).then_some(Self { offset, len, tag: (word & 0xffff) as u16 })
    }

    /// The slots of a bucket's bytes that may name the block of a key.
    pub fn candidates(bucket: &[u8], hash: Hash) -> impl Iterator<Item = Self> + '_ {
        let words = bucket.chunks_exact(SLOT_LEN).map(|bytes| word(bytes, 0));
        words.filter_map(Self::from_word).filter(move |slot| slot.tag == hash.tag())
    }
}

/// The hash of a key: chooses its two buckets and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    /// The hash of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(xxh64(key, 0))
    }

    /// The tag of the key's slot.
    #[must_use]
    pub fn tag(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The two buckets of the key, of `count`, which is a power of two and at least 2.
    #[must_use]
    pub fn buckets(self, count: usize) -> [usize; 2] {
        let masked = |number: u64| usize::try_from(number & (count as u64 - 1)).unwrap_or(0);
        let (first, second) = (masked(self.0), masked(self.0 >> 24));
        [first, if second == first { first ^ 1 } else { second }]
    }
}

/// Bytes of the block of a key and a value: one of four lengths between each power of two and the
/// next, so that another block takes its place later.
#[must_use]
pub fn block_len(key: &[u8], value: &[u8]) -> usize {
    let len = HEADER_LEN + key.len() + value.len();
    len.next_multiple_of((len.next_power_of_two() / 8).max(UNIT))
}

/// Makes a block.
#[must_use]
pub fn seal(key: &[u8], sequence: u64, value: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(HEADER_LEN + key.len() + value.len());
    block.extend_from_slice(&[0; CHECKSUM_LEN]);
    block.extend_from_slice(&sequence.to_le_bytes());
    for len in [key.len(), value.len()] {
        block.extend_from_slice(&(len as u64).to_le_bytes());
    }
    block.extend_from_slice(key);
    block.extend_from_slice(value);
    let checksum = xxh64(&block[CHECKSUM_LEN..], 0);
    block[..CHECKSUM_LEN].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// The checksum of a block.
#[must_use]
pub fn checksum(block: &[u8]) -> u64 {
    word(block, 0)
}

/// The contents of a block that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The block of the key: its sequence number and the place of its value in the block.
    Found(u64, Range<usize>),
    /// A whole block of another key.
    OtherKey,
    /// Parts of several blocks.
    Torn,
}

/// Checks a block that was read in search of a key.
#[must_use]
pub fn open(block: &[u8], key: &[u8]) -> Opened {
    let Some((key_len, value_len)) = lengths(block) else { return Opened::Torn };
    let value = HEADER_LEN + key_len..HEADER_LEN + key_len + value_len;
    match block.get(CHECKSUM_LEN..value.end) {
        Some(covered) if xxh64(covered, 0) == checksum(block) => {}
        _ => return Opened::Torn,
    }
    match &block[HEADER_LEN..value.start] == key {
        true => Opened::Found(word(block, 8), value),
        false => Opened::OtherKey,
    }
}

/// The lengths of the key and the value, if they are possible.
fn lengths(block: &[u8]) -> Option<(usize, usize)> {
    let lens = block.get(16..HEADER_LEN)?;
    let [key, value] = [word(lens, 0), word(lens, 8)].map(|len| usize::try_from(len).unwrap_or(usize::MAX));
    (key <= MAX_KEY && value <= MAX_VALUE).then_some((key, value))
}

/// The word at an offset, which lies in `bytes`.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_blocks_waste_a_quarter_at_most() {
        let bytes = vec![0; MAX_VALUE];
        for (key, value) in (0..MAX_VALUE).step_by(97).map(|len| (7, len)).chain([(0, 0), (MAX_KEY, MAX_VALUE)]) {
            let (len, needed) = (block_len(&bytes[..key], &bytes[..value]), HEADER_LEN + key + value);
            assert!(len % UNIT == 0 && len >= needed && len - needed <= UNIT.max(needed / 4), "{needed}: {len}");
            let slot = Slot { offset: UNIT, len, tag: 7 };
            assert_eq!(Slot::from_word(slot.to_word()), Some(slot));
        }
    }

    #[test]
    fn slots_and_words_correspond() {
        let slot = Slot { offset: Slot::MAX_OFFSET - UNIT, len: 0xffff * UNIT, tag: 0xabcd };
        assert_eq!(Slot::from_word(slot.to_word()), Some(slot));
        for invalid in [0, 0xabcd, 0x0001_abcd, 0x1_0000_abcd] {
            assert_eq!(Slot::from_word(invalid), None, "{invalid:#x}");
        }
    }

    #[test]
    fn a_block_with_any_changed_bit_is_torn() {
        let block = seal(b"key", 7, b"value");
        assert_eq!(open(&block, b"key"), Opened::Found(7, 35..40));
        assert_eq!(open(&block, b"yek"), Opened::OtherKey);
        for bit in 0..block.len() * 8 {
            let mut torn = block.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&torn, b"key"), Opened::Torn, "bit {bit}");
        }
        for len in 0..block.len() {
            assert_eq!(open(&block[..len], b"key"), Opened::Torn);
        }
    }

    #[test]
    fn a_mix_of_two_versions_is_torn_wherever_it_changes() {
        let (old, new) = (seal(b"key", 1, &[1; 100]), seal(b"key", 2, &[2; 100]));
        for at in 0..=old.len() {
            for (front, back) in [(&old, &new), (&new, &old)] {
                let mixed = [&front[..at], &back[at..]].concat();
                let is_whole = [&old, &new].contains(&&mixed);
                assert_eq!(open(&mixed, b"key") != Opened::Torn, is_whole, "at {at}");
            }
        }
    }
}
