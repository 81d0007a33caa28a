//! The journal of a communicator's operations: which ones a rank has begun, in memory of its own.
//!
//! All ranks do the same operations in the same order, so the entries of one number are equal at
//! all ranks. The ranks compare them in the background: twice a second each one reports its new
//! entries to rank 0 of the communicator ([`compare`](super::compare)). An operation costs a few
//! stores to a line that no other core writes, and no message.
//!
//! Another way would be a number in each message of an operation. The smallest messages have no
//! space for one: they fill their line, or are a write whose immediate data names its lane. It
//! would cost a comparison for each message, and two ranks that exchange no message, or wait for
//! each other, would learn nothing.
//!
//! Between two reports a rank may do a million operations, and two ranks report at different
//! moments. So a journal keeps the last entries, and *marks*: the last entry whose number is a
//! multiple of 32, 64, 128 and so on, each with the entry before it: of ranks that repeat two
//! operations, multiples alone would name one. The journals of two ranks have a mark in common,
//! unless one has done half as many operations again as the other. An entry also holds a hash of
//! all operations up to its own, so an equal mark says that all operations before it were equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};

use super::watch::Watch;
use crate::Error;

/// What an operation is, in words that are equal at all ranks if they do the same.
pub(crate) type Signature = [u64; 3];

/// Last entries that a journal keeps.
const LAST: u64 = 32;
/// Place of the entry before a mark among the last ones.
const BEFORE_MARK: u64 = LAST - 1;
/// Marks that a journal keeps: one for each power of two from `LAST` on.
const MARKS: u32 = u64::BITS - LAST.trailing_zeros();
/// Most entries of a report.
pub(super) const MOST_ENTRIES: usize = 150;
const _: () = assert!(MOST_ENTRIES as u64 == LAST + 2 * MARKS as u64);

/// The hash of a rank that has done operations without numbers of elements.
pub(super) const NO_HASH: u64 = 0;
/// The hash of no operation.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// An operation that a rank has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Number of the operation in its communicator, from 1.
    pub(super) number: u64,
    /// Hash of the signatures of all operations up to this one, or [`NO_HASH`].
    pub(super) hash: u64,
    pub(super) signature: Signature,
}

/// The new entries of a rank's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Number of the last operation that the rank has begun.
    pub(super) last: u64,
    /// Entries by increasing number.
    pub(super) entries: Vec<Entry>,
}

/// What the ranks of a communicator tell each other about their operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum News {
    /// To rank 0 of the communicator.
    Report(Report),
    /// From rank 0 of the communicator.
    Mismatch(Mismatch),
}

/// Two ranks of a communicator that do different operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mismatch {
    /// The number of the operation.
    pub(super) number: u64,
    /// The ranks, in increasing order.
    pub(super) ranks: [usize; 2],
    /// The operation of each with this number. They may be equal: then the ranks have done
    /// different ones between the operations `equal_up_to` and `number`.
    pub(super) signatures: [Signature; 2],
    pub(super) equal_up_to: u64,
}

/// The entries of one rank: one thread writes them and another one reads them.
#[derive(Debug)]
pub(super) struct Journal {
    last: Vec<Line>,
    /// The entry before each mark, and the mark.
    marks: [Vec<Line>; 2],
}

impl Journal {
    pub(super) fn new() -> Self {
        let lines = |count: u64| (0..count).map(|_| Line::default()).collect();
        Self { last: lines(LAST), marks: [MARKS, MARKS].map(|count| lines(count.into())) }
    }

    fn write(&self, entry: Entry) {
        let at = entry.number % LAST;
        self.last[at as usize].write(entry);
        let (which, mark) = match at {
            0 => (1, entry.number),
            BEFORE_MARK => (0, entry.number + 1),
            _ => return,
        };
        let place = mark.trailing_zeros() - LAST.trailing_zeros();
        self.marks[which][place as usize].write(entry);
    }

    /// The entries after the operation of a number; `None` if there are none.
    ///
    /// Entries that are written meanwhile are left to the next call: one of them may be seen and
    /// the one before it not.
    pub(super) fn since(&self, number: u64) -> Option<Report> {
        // The entries before this one have been written, whether this thread has seen them or not.
        let last = self.last.iter().filter_map(Line::read).map(|entry| entry.number).max()?;
        if last <= number {
            return None;
        }
        let entries = self.last.iter().chain(self.marks.iter().flatten()).filter_map(Line::read);
        let new = entries.filter(|entry| (number + 1..=last).contains(&entry.number));
        let new: BTreeMap<u64, Entry> = new.map(|entry| (entry.number, entry)).collect();
        Some(Report { last, entries: new.into_values().collect() })
    }
}

/// The place of an entry: a line of the cache, so that writing it disturbs no other core.
///
/// A sequence lock: the number is 0 while the other words change.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    number: AtomicU64,
    hash: AtomicU64,
    signature: [AtomicU64; 3],
}

impl Line {
    /// Stores an entry; called by one thread alone.
    #[inline]
    fn write(&self, entry: Entry) {
        self.number.store(0, Ordering::Relaxed);
        // A reader that sees one of the stores below sees that the number has changed.
        fence(Ordering::Release);
        self.hash.store(entry.hash, Ordering::Relaxed);
        for (word, value) in self.signature.iter().zip(entry.signature) {
            word.store(value, Ordering::Relaxed);
        }
        self.number.store(entry.number, Ordering::Release);
    }

    /// Loads the entry, unless there is none or it is being changed.
    fn read(&self) -> Option<Entry> {
        let number = self.number.load(Ordering::Acquire);
        let hash = self.hash.load(Ordering::Relaxed);
        let signature = self.signature.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = number != 0 && self.number.load(Ordering::Relaxed) == number;
        is_whole.then_some(Entry { number, hash, signature })
    }
}

/// Writes the journal of a communicator, as long as no other rank is known to do other operations.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// `None` if there is no other rank.
    journal: Option<Arc<Journal>>,
    watch: Watch,
    number: u64,
    hash: u64,
}

impl Recorder {
    pub(super) fn new(journal: Option<Arc<Journal>>, watch: Watch) -> Self {
        Self { journal, watch, number: 0, hash: SEED }
    }

    /// Records an operation that begins. Fails if the ranks have done different ones.
    #[inline]
    pub(crate) fn record(&mut self, signature: Signature) -> Result<(), Error> {
        let Some(journal) = &self.journal else { return Ok(()) };
        self.watch.check_part()?;
        self.number += 1;
        if self.hash != NO_HASH {
            self.hash = mix(self.hash, signature);
        }
        journal.write(Entry { number: self.number, hash: self.hash, signature });
        Ok(())
    }

    /// The number of the next operation.
    pub(crate) fn next_number(&self) -> u64 {
        self.number + 1
    }

    /// Says that the signatures of this rank are not those of the others: from now on each is
    /// compared alone, and not the hash of all.
    pub(crate) fn forget(&mut self) {
        self.hash = NO_HASH;
    }
}

/// Adds a signature to a hash. The words are multiplied at the same time, and not one after the
/// other.
#[inline]
fn mix(hash: u64, [one, two, three]: Signature) -> u64 {
    let words = one.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ two.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(21)
        ^ three.wrapping_mul(0x1656_67b1_9e37_79f9).rotate_left(42);
    let mixed = (hash.rotate_left(5) ^ words).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn recorder() -> (Arc<Journal>, Recorder) {
        let journal = Arc::new(Journal::new());
        (Arc::clone(&journal), Recorder::new(Some(journal), Watch::new()))
    }

    #[test]
    fn a_journal_keeps_the_last_entries_and_marks() {
        let (journal, mut recorder) = recorder();
        assert_eq!(journal.since(0), None);
        for number in 1..=1000 {
            recorder.record([number, 0, 0]).unwrap();
        }
        let numbers = |after| {
            let report = journal.since(after).unwrap();
            assert_eq!(report.last, 1000);
            assert!(report.entries.iter().all(|entry| entry.signature == [entry.number, 0, 0]));
            report.entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
        };
        let last: Vec<u64> = (969..=1000).collect();
        assert_eq!(numbers(0), [&[511, 512, 767, 768, 895, 896, 959, 960][..], &last].concat());
        assert_eq!(numbers(998), [999, 1000]);
        assert_eq!(journal.since(1000), None);
        recorder.forget();
        recorder.record([1001, 0, 0]).unwrap();
        let hashes: Vec<_> = journal.since(999).unwrap().entries.iter().map(|entry| entry.hash != NO_HASH).collect();
        assert_eq!(hashes, [true, false]);
    }

    #[test]
    fn equal_hashes_are_of_equal_operations() {
        let hash = |signatures: &[Signature]| {
            let mut recorder = recorder().1;
            signatures.iter().for_each(|signature| recorder.record(*signature).unwrap());
            recorder.hash
        };
        let (one, two) = ([1, 2, 3], [1, 3, 2]);
        assert_eq!(hash(&[one, two]), hash(&[one, two]));
        let others = [hash(&[one]), hash(&[two]), hash(&[two, one]), hash(&[one, one]), hash(&[[0; 3], one, two])];
        assert!(!others.contains(&hash(&[one, two])), "{others:?}");
    }

    /// A report that begins after the last one has all entries that are still there.
    #[test]
    fn no_entry_is_skipped_while_others_are_written() {
        let (journal, mut recorder) = recorder();
        let begun = Arc::new(AtomicU64::new(0));
        let begins = Arc::clone(&begun);
        let writer = std::thread::spawn(move || {
            for number in 1..=500_000 {
                begins.store(number, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                recorder.record([number, 0, 0]).unwrap();
                (0..number % 64).for_each(|_| std::hint::spin_loop());
            }
        });
        let mut last = 0;
        while last < 500_000 {
            let Some(report) = journal.since(last) else { continue };
            fence(Ordering::SeqCst);
            // An entry is overwritten when the one 32 later begins.
            let overwritten = begun.load(Ordering::SeqCst).saturating_sub(LAST);
            let numbers: Vec<_> = report.entries.iter().map(|entry| entry.number).collect();
            let kept = last.max(overwritten) + 1..=report.last;
            for number in kept {
                assert!(numbers.contains(&number), "{number} after {last}, not in {numbers:?}");
            }
            last = report.last;
        }
        writer.join().unwrap();
    }

    /// The words of an entry that is read belong together.
    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let (journal, mut recorder) = recorder();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let writer = std::thread::spawn(move || {
            let mut number = 0;
            while !flag.load(Ordering::Relaxed) {
                number += 1;
                recorder.record([number, number * 7, !number]).unwrap();
            }
        });
        let mut seen = 0;
        while seen < 10_000 {
            for Entry { number, signature, .. } in journal.since(0).map_or_else(Vec::new, |report| report.entries) {
                assert_eq!(signature, [number, number * 7, !number]);
                seen += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    }
}
