//! The owner's view of the table: decides where keys and blocks lie. It touches no memory of the
//! table and reads no clock: each change says what to write, and time is an argument.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::block::{
    BUCKET_LEN, CHECKSUM_LEN, HEADER_LEN, Hash, MAX_KEY, MAX_VALUE, SLOT_LEN, SLOTS, Slot, block_len, checksum, seal,
};

/// The keys of a table and the places of their blocks.
#[derive(Debug)]
pub struct Table {
    buckets: usize,
    /// Bytes of the table's memory.
    len: usize,
    keys: HashMap<Box<[u8]>, Entry>,
    /// Number of each bucket's slots that are taken, as bits.
    taken: Vec<u8>,
    /// End of the memory that was ever used.
    end: usize,
    /// Blocks that no slot names any more, of each length, oldest first.
    retired: HashMap<usize, VecDeque<Retired>>,
    grace: Duration,
    /// Sequence number of the last change.
    sequence: u64,
}

#[derive(Debug)]
struct Entry {
    /// Index of the slot in the table.
    index: usize,
    slot: Slot,
    sequence: u64,
    value_len: usize,
}

#[derive(Debug)]
struct Retired {
    offset: usize,
    since: Instant,
}

/// What a change writes.
#[derive(Debug)]
pub struct Change {
    /// Offset and contents of a new block.
    pub block: Option<(usize, Vec<u8>)>,
    /// Offset and word of the slot.
    pub slot: (usize, u64),
    /// Sequence number of the change.
    pub sequence: u64,
}

impl Change {
    /// Does the writes in their order: `write` takes bytes, and `store` a word, which must become
    /// visible at once and after all that was written before.
    ///
    /// The block's checksum comes after the slot. A reader that comes late, by a slot of the time
    /// when the block had another value, would otherwise find a value that no slot names yet, and
    /// an older one at its next read.
    ///
    /// # Errors
    /// The first error of a write.
    pub fn write<E>(
        &self,
        mut write: impl FnMut(usize, &[u8]) -> std::result::Result<(), E>,
        mut store: impl FnMut(usize, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let block = self.block.as_ref().map(|(offset, block)| (*offset, checksum(block), &block[CHECKSUM_LEN..]));
        if let Some((offset, checksum, rest)) = block {
            store(offset, !checksum)?;
            write(offset + CHECKSUM_LEN, rest)?;
        }
        let (offset, word) = self.slot;
        store(offset, word)?;
        block.map_or(Ok(()), |(offset, checksum, _)| store(offset, checksum))
    }
}

/// The result of a decision about a change.
pub type Result<T> = std::result::Result<T, Refusal>;

/// The reason why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The key does not exist.
    #[error("the key does not exist")]
    NoKey,
    /// The key has another sequence number than the caller expects: this one, or 0 for none.
    #[error("{}", conflict(*.0))]
    Conflict(u64),
    /// No slot or no memory is left for the key.
    #[error("the server has no room for the key; give it more --memory or --keys")]
    Full,
    /// The key or the value is too long.
    #[error("the key or the value is too long for the server")]
    TooLong,
}

impl Table {
    /// A table for `keys` keys in `len` bytes of memory. Blocks are reused once they have been
    /// unused for `grace`, or earlier if memory is short: correct readers notice.
    #[must_use]
    pub fn new(keys: usize, len: usize, grace: Duration) -> Self {
        // Half of the slots stay free, so that both buckets of a key are hardly ever full.
        let buckets = (keys * 2).div_ceil(SLOTS).next_power_of_two().max(2);
        let end = buckets * BUCKET_LEN;
        let (keys, retired, taken) = (HashMap::new(), HashMap::new(), vec![0; buckets]);
        let len = len.min(Slot::MAX_OFFSET);
        Self { buckets, len, keys, taken, end, retired, grace, sequence: 0 }
    }

    /// Bytes of the buckets of a table for `keys` keys, which lie in front of all blocks.
    #[must_use]
    pub fn bucket_bytes(keys: usize) -> usize {
        Self::new(keys, 0, Duration::ZERO).end
    }

    /// Number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    /// The sequence number of a key, and the place of its value in the table's memory.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<(u64, Range<usize>)> {
        let entry = self.keys.get(key)?;
        let start = entry.slot.offset + HEADER_LEN + key.len();
        Some((entry.sequence, start..start + entry.value_len))
    }

    /// Sets the value of a key. With `expected`, only if the key has this sequence number, or does
    /// not exist for 0.
    ///
    /// # Errors
    /// The reason why nothing has changed.
    pub fn put(&mut self, key: &[u8], value: &[u8], expected: Option<u64>, now: Instant) -> Result<Change> {
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return Err(Refusal::TooLong);
        }
        self.check(key, expected)?;
        let hash = Hash::of(key);
        let index = match self.keys.get(key) {
            Some(entry) => entry.index,
            None => self.free_slot(hash).ok_or(Refusal::Full)?,
        };
        let len = block_len(key, value);
        let offset = self.allocate(len, now).ok_or(Refusal::Full)?;
        self.sequence += 1;
        let slot = Slot { offset, len, tag: hash.tag() };
        let entry = Entry { index, slot, sequence: self.sequence, value_len: value.len() };
        self.taken[index / SLOTS] |= 1 << (index % SLOTS);
        if let Some(old) = self.keys.insert(key.into(), entry) {
            self.retire(old.slot, now);
        }
        let block = Some((offset, seal(key, self.sequence, value)));
        Ok(Change { block, slot: (index * SLOT_LEN, slot.to_word()), sequence: self.sequence })
    }

    /// Removes a key. With `expected`, only if the key has this sequence number.
    ///
    /// # Errors
    /// The reason why nothing has changed.
    pub fn delete(&mut self, key: &[u8], expected: Option<u64>, now: Instant) -> Result<Change> {
        self.check(key, expected)?;
        let Entry { index, slot, .. } = self.keys.remove(key).ok_or(Refusal::NoKey)?;
        self.taken[index / SLOTS] &= !(1 << (index % SLOTS));
        self.retire(slot, now);
        self.sequence += 1;
        Ok(Change { block: None, slot: (index * SLOT_LEN, 0), sequence: self.sequence })
    }

    fn check(&self, key: &[u8], expected: Option<u64>) -> Result<()> {
        let sequence = self.keys.get(key).map_or(0, |entry| entry.sequence);
        if expected.is_none_or(|expected| expected == sequence) { Ok(()) } else { Err(Refusal::Conflict(sequence)) }
    }

    /// A free slot in the emptier one of the key's buckets.
    fn free_slot(&self, hash: Hash) -> Option<usize> {
        let buckets = hash.buckets(self.buckets).into_iter();
        let bucket = buckets.min_by_key(|&bucket| self.taken[bucket].count_ones())?;
        let slot = self.taken[bucket].trailing_ones() as usize;
        (slot < SLOTS).then_some(bucket * SLOTS + slot)
    }

    /// Takes a block: one that was retired long enough ago, new memory, or the oldest retired one.
    fn allocate(&mut self, len: usize, now: Instant) -> Option<usize> {
        let retired = self.retired.entry(len).or_default();
        let is_old = |oldest: &Retired| now.saturating_duration_since(oldest.since) >= self.grace;
        if self.len - self.end.min(self.len) >= len && !retired.front().is_some_and(is_old) {
            self.end += len;
            return Some(self.end - len);
        }
        retired.pop_front().map(|block| block.offset)
    }

    fn retire(&mut self, slot: Slot, now: Instant) {
        self.retired.entry(slot.len).or_default().push_back(Retired { offset: slot.offset, since: now });
    }
}

fn conflict(sequence: u64) -> String {
    match sequence {
        0 => "the key does not exist, so it has no sequence number".to_owned(),
        sequence => format!("the key has changed: its sequence number is {sequence}"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::super::block::{Opened, open};
    use super::*;

    const LEN: usize = 4096;

    /// The memory of a table, which a reader searches as a client does.
    struct Memory(Vec<u8>);

    impl Memory {
        fn apply(&mut self, change: &Change) {
            self.apply_some(change, usize::MAX);
        }

        /// Does the first `count` writes of a change, and returns whether these are all.
        fn apply_some(&mut self, change: &Change, count: usize) -> bool {
            let (memory, left) = (RefCell::new(&mut self.0), Cell::new(count));
            let write = |at: usize, bytes: &[u8]| {
                left.set(left.get().checked_sub(1).ok_or(())?);
                memory.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
                Ok::<(), ()>(())
            };
            change.write(write, |at, word| write(at, &word.to_le_bytes())).is_ok()
        }

        fn get(&self, key: &[u8], buckets: usize) -> Option<(u64, Vec<u8>)> {
            let hash = Hash::of(key);
            let bucket = |number: usize| &self.0[number * BUCKET_LEN..][..BUCKET_LEN];
            let mut slots = hash.buckets(buckets).into_iter().flat_map(|number| Slot::candidates(bucket(number), hash));
            slots.find_map(|slot| {
                let block = &self.0[slot.offset..][..slot.len];
                match open(block, key) {
                    Opened::Found(sequence, value) => Some((sequence, block[value].to_vec())),
                    Opened::OtherKey => None,
                    Opened::Torn => panic!("a slot names a block that is not whole"),
                }
            })
        }
    }

    #[derive(Clone, Debug)]
    enum Action {
        Put(u8, u8, usize),
        PutIf(u8, bool),
        Delete(u8),
        Wait(u8),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            6 => (0..40u8, any::<u8>(), 0..300usize).prop_map(|(key, byte, len)| Action::Put(key, byte, len)),
            2 => (0..40u8, any::<bool>()).prop_map(|(key, is_right)| Action::PutIf(key, is_right)),
            2 => (0..40u8).prop_map(Action::Delete),
            1 => any::<u8>().prop_map(Action::Wait),
        ]
    }

    /// A table, its memory, and the same as a map.
    struct World {
        table: Table,
        memory: Memory,
        model: HashMap<Vec<u8>, (u64, Vec<u8>)>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let table = Table::new(24, LEN, Duration::from_millis(50));
            Self { table, memory: Memory(vec![0; LEN]), model: HashMap::new(), now: Instant::now() }
        }

        fn sequence(&self, key: &[u8]) -> u64 {
            self.model.get(key).map_or(0, |(sequence, _)| *sequence)
        }

        fn put(&mut self, key: u8, value: &[u8], expected: Option<u64>) {
            let key = [key; 3];
            let sequence = self.sequence(&key);
            match self.table.put(&key, value, expected, self.now) {
                Ok(change) => {
                    assert!(expected.is_none_or(|expected| expected == sequence));
                    self.model.insert(key.to_vec(), (change.sequence, value.to_vec()));
                    self.memory.apply(&change);
                }
                Err(Refusal::Conflict(found)) => assert!(found == sequence && expected != Some(sequence)),
                Err(refusal) => assert_eq!(refusal, Refusal::Full),
            }
        }

        fn delete(&mut self, key: u8) {
            let key = [key; 3];
            match self.table.delete(&key, None, self.now) {
                Ok(change) => {
                    assert!(self.model.remove(&key[..]).is_some());
                    self.memory.apply(&change);
                }
                Err(refusal) => assert!(refusal == Refusal::NoKey && !self.model.contains_key(&key[..])),
            }
        }

        fn step(&mut self, action: &Action) {
            match *action {
                Action::Put(key, byte, len) => self.put(key, &vec![byte; len], None),
                Action::PutIf(key, true) => self.put(key, b"right", Some(self.sequence(&[key; 3]))),
                Action::PutIf(key, false) => self.put(key, b"wrong", Some(self.sequence(&[key; 3]) + 1)),
                Action::Delete(key) => self.delete(key),
                Action::Wait(ms) => self.now += Duration::from_millis(ms.into()),
            }
        }

        fn check(&self) {
            for key in 0..40 {
                let (key, buckets) = ([key; 3], self.table.buckets());
                assert_eq!(self.memory.get(&key, buckets).as_ref(), self.model.get(&key[..]));
                let place = self.table.get(&key).map(|(sequence, at)| (sequence, self.memory.0[at].to_vec()));
                assert_eq!(place.as_ref(), self.model.get(&key[..]));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
        #[test]
        fn a_reader_finds_what_was_put_last(actions in prop::collection::vec(action(), 1..150)) {
            let mut world = World::new();
            for action in &actions {
                world.step(action);
                world.check();
            }
        }
    }

    #[test]
    fn a_block_rests_before_it_is_reused_unless_memory_is_short() {
        let (mut now, grace) = (Instant::now(), Duration::from_secs(1));
        let first = Table::bucket_bytes(1);
        // Space for three blocks of 64 bytes.
        let mut table = Table::new(1, first + 192, grace);
        let mut put = |now| table.put(b"key", b"value", None, now).unwrap().block.unwrap().0 - first;
        assert_eq!([put(now), put(now), put(now)], [0, 64, 128]);
        assert_eq!(put(now), 0, "memory is short");
        now += grace;
        assert_eq!(put(now), 64);
    }

    /// Otherwise the value of its next read could be older.
    #[test]
    fn a_late_reader_finds_no_value_that_no_slot_names() {
        let len = Table::bucket_bytes(1) + 128;
        let (mut table, mut memory) = (Table::new(1, len, Duration::ZERO), Memory(vec![0; len]));
        let mut put = |value: &[u8]| table.put(b"key", value, None, Instant::now()).unwrap();
        let first = put(b"1");
        memory.apply(&first);
        memory.apply(&put(b"2"));
        let (third, (block, _)) = (put(b"3"), first.block.unwrap());
        assert_eq!(third.block.as_ref().unwrap().0, block, "the first block is used again");
        let buckets = Hash::of(b"key").buckets(2);
        let is_all = (0..10).map(|writes| {
            let mut memory = Memory(memory.0.clone());
            let is_all = memory.apply_some(&third, writes);
            let slots = buckets
                .iter()
                .flat_map(|bucket| Slot::candidates(&memory.0[bucket * BUCKET_LEN..][..BUCKET_LEN], Hash::of(b"key")));
            let is_named = slots.map(|slot| slot.offset).any(|offset| offset == block);
            match open(&memory.0[block..], b"key") {
                Opened::Found(1, _) => assert_eq!(writes, 0),
                Opened::Found(sequence, _) => assert!(sequence == 3 && is_named, "after {writes} writes"),
                Opened::Torn => assert!(!is_all),
                Opened::OtherKey => panic!("another key"),
            }
            is_all
        });
        assert_eq!(is_all.filter(|is_all| *is_all).count(), 6, "a change has four writes");
    }

    #[test]
    fn a_table_takes_all_the_keys_that_it_is_made_for() {
        let keys = 20_000;
        let mut table = Table::new(keys, 1 << 30, Duration::ZERO);
        for key in 0..keys {
            table.put(&key.to_le_bytes(), b"", None, Instant::now()).unwrap();
        }
        let long = table.put(&[0; MAX_KEY + 1], b"", None, Instant::now());
        assert_eq!(long.unwrap_err(), Refusal::TooLong);
    }
}
