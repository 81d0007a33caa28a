//! The format of the table in memory, which the server writes and its clients read: buckets of
//! slots, and blocks.
//!
//! A slot is one aligned word of 8 bytes, the largest unit that a read is trusted to keep whole. It
//! names a block, which holds a key, its value and a checksum of both. A block is never changed
//! while a slot names it. A client that reads a block too late may find parts of another one there,
//! which the checksum shows.

use std::ops::Range;

use xxhash_rust::xxh64::xxh64;

/// Slots of a bucket.
pub const SLOTS: usize = 8;
/// Bytes of a slot.
pub const SLOT_LEN: usize = 8;
/// Bytes of a bucket.
pub const BUCKET_LEN: usize = SLOTS * SLOT_LEN;
/// Bytes of a block before its key: checksum, sequence number, lengths of key and value.
pub const HEADER_LEN: usize = 32;
/// Longest key.
pub const MAX_KEY: usize = 1 << 10;
/// Longest value.
pub const MAX_VALUE: usize = 256 << 10;

/// The size of a block: one of four sizes between each power of two and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// Number of classes; the largest holds the longest key with the longest value.
    pub const COUNT: u8 = 52;

    /// The smallest class that holds `len` bytes.
    #[must_use]
    pub fn for_len(len: usize) -> Option<Self> {
        (0..Self::COUNT).map(Self).find(|class| class.len() >= len)
    }

    /// Bytes of a block of this class.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no class is empty")]
    pub fn len(self) -> usize {
        usize::from(4 + self.0 % 4) << (self.0 / 4 + 4)
    }

    /// The number of the class.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// A slot that names a block: 40 bits of offset, 8 bits of class, 16 bits of the key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Offset of the block in the table's memory.
    pub offset: usize,
    /// Size of the block.
    pub class: Class,
    /// Part of the hash of the block's key.
    pub tag: u16,
}

impl Slot {
    /// Offsets are less than this.
    pub const MAX_OFFSET: usize = 1 << 40;

    /// The slot as a word; never 0.
    #[must_use]
    pub fn to_word(self) -> u64 {
        ((self.offset as u64) << 24) | (u64::from(self.class.0) << 16) | u64::from(self.tag)
    }

    /// The slot of a word; `None` if it is empty or invalid.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let [.., class, one, two] = word.to_be_bytes();
        let offset = usize::try_from(word >> 24).ok()?;
        let slot = Self { offset, class: Class(class), tag: u16::from_be_bytes([one, two]) };
        // Buckets lie in front of all blocks, so no block has offset 0.
        (slot.offset != 0 && class < Class::COUNT).then_some(slot)
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

/// Bytes of the block of a key and a value.
#[must_use]
pub fn block_len(key: &[u8], value: &[u8]) -> usize {
    HEADER_LEN + key.len() + value.len()
}

/// Makes a block.
#[must_use]
pub fn seal(key: &[u8], sequence: u64, value: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(block_len(key, value));
    block.extend_from_slice(&[0; 8]);
    block.extend_from_slice(&sequence.to_le_bytes());
    for len in [key.len(), value.len()] {
        block.extend_from_slice(&(len as u64).to_le_bytes());
    }
    block.extend_from_slice(key);
    block.extend_from_slice(value);
    let checksum = xxh64(&block[8..], 0);
    block[..8].copy_from_slice(&checksum.to_le_bytes());
    block
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
    match block.get(8..value.end) {
        Some(covered) if xxh64(covered, 0) == word(block, 0) => {}
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
    fn classes_waste_a_quarter_at_most() {
        let longest = HEADER_LEN + MAX_KEY + MAX_VALUE;
        for len in (1..longest).step_by(97).chain([64, 65, 80, 81, longest]) {
            let class = Class::for_len(len).unwrap();
            assert!(class.len() >= len && (class.len() <= 64 || class.len() * 4 <= len * 5), "{len}: {}", class.len());
        }
        assert_eq!(Class::for_len(1 << 20), None);
    }

    #[test]
    fn slots_and_words_correspond() {
        let slot = Slot { offset: Slot::MAX_OFFSET - 8, class: Class(51), tag: 0xabcd };
        assert_eq!(Slot::from_word(slot.to_word()), Some(slot));
        for invalid in [0, 0xabcd, (1 << 24) | (u64::from(Class::COUNT) << 16), u64::MAX] {
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
