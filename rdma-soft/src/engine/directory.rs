//! The directory: queue pairs and regions that an engine publishes, so that peers can execute
//! one-sided operations directly.
//!
//! ```text
//! 0                     a card (one word) for each queue pair under the first slot
//! CARDS * 8             an entry for each region: key, domain and rights; iova; length; serial
//! ```
//!
//! A peer checks card and entry before each operation. Cards and entries are withdrawn before a
//! state change or a deregistration returns. A peer that has just checked may still finish its
//! operation, in memory that is shared with it.

use super::limits::QPS_PER_SLOT;
use super::memory::{Area, Region};
use super::types::PdId;

/// The length of a directory in bytes.
pub(crate) const DIRECTORY_LEN: usize = 256 << 10;

const CARDS: usize = QPS_PER_SLOT as usize;
const ENTRY: usize = 32;
/// The most regions that can be published; further regions are reached only through links.
pub(super) const ENTRIES: usize = (DIRECTORY_LEN - CARDS * 8) / ENTRY;

/// The facts that a requester must know of its responder, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card(u64);

impl Card {
    /// Creates the card of a queue pair that executes requests of `peer`.
    pub(super) const fn new(peer: u32, pd: PdId, access: u32) -> Self {
        Self(1 << 63 | (peer as u64) << 32 | (access as u64 & 15) << 24 | pd.0 as u64 & 0xffff)
    }

    /// Returns the queue pair's domain, if requests of `peer` with `right` are executed.
    #[allow(clippy::cast_possible_truncation, reason = "fields of the word")]
    pub(super) const fn admits(self, peer: u32, right: u32) -> Option<PdId> {
        let same = self.0 >> 63 == 1 && (self.0 >> 32) as u32 & 0x00ff_ffff == peer;
        if same && (self.0 >> 24) as u32 & 15 & right == right { Some(PdId(self.0 as u32 & 0xffff)) } else { None }
    }
}

/// The facts that a peer publishes about a region. They are hostile until checked, and are used
/// only to access memory that this peer shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) iova: u64,
    pub(super) len: u64,
    /// Distinguishes the region from all others of its process, because keys are used again.
    pub(super) serial: u64,
}

/// Packs key, domain and rights into a word; the lowest bit says that the region may be mapped.
const fn entry_word(key: u32, pd: PdId, access: u32) -> u64 {
    (key as u64) << 32 | (pd.0 as u64 & 0xffff) << 8 | (access as u64 & 15) << 1 | 1
}

/// The directory of a peer, mapped into this process.
#[derive(Debug)]
pub(super) struct PeerDirectory<'a>(pub(super) &'a Area);

impl PeerDirectory<'_> {
    /// Loads the card of a queue pair.
    pub(super) fn card(&self, qpn: u32) -> Card {
        Card(self.0.load((qpn % QPS_PER_SLOT) as usize * 8))
    }

    /// Loads the entry of a region that may be mapped, if the region is in the domain and has the
    /// right.
    pub(super) fn entry(&self, key: u32, pd: PdId, right: u32) -> Option<Entry> {
        let at = CARDS * 8 + index_of(key)? * ENTRY;
        let serial = self.0.load(at + 24);
        let what = self.0.load(at);
        let entry = Entry { iova: self.0.load(at + 8), len: self.0.load(at + 16), serial };
        // All loads are acquire loads. If the first word and the serial number read the same again,
        // then the iova and the length, which were read in between, belong to the same region.
        #[allow(clippy::cast_possible_truncation, reason = "a field of the word")]
        let access = what as u32 >> 1 & 15;
        let valid = what == entry_word(key, pd, access) && access & right == right;
        let valid = valid && self.0.load(at) == what && self.0.load(at + 24) == serial;
        valid.then_some(entry)
    }
}

/// Returns the index of a region's entry in a directory, if its key has one.
pub(super) fn index_of(key: u32) -> Option<usize> {
    Some((key >> 12) as usize).filter(|index| *index < ENTRIES)
}

/// The directory of this engine. A copy of the cards in private memory serves requesters of the
/// same process.
#[derive(Debug)]
pub(super) struct Directory {
    area: Option<Area>,
    cards: Vec<Card>,
}

impl Directory {
    pub(super) const fn new(area: Option<Area>) -> Self {
        Self { area, cards: Vec::new() }
    }

    /// Publishes a queue pair's card, or withdraws it (`None`).
    pub(super) fn set_card(&mut self, index: u32, card: Option<Card>) {
        let (index, card) = (index as usize, card.unwrap_or(Card(0)));
        if self.cards.len() <= index {
            self.cards.resize(index + 1, Card(0));
        }
        self.cards[index] = card;
        if let Some(area) = self.area.as_ref().filter(|_| index < CARDS) {
            area.store(index * 8, card.0);
        }
    }

    /// Returns the card of a queue pair of this process.
    pub(super) fn card(&self, index: u32) -> Option<Card> {
        self.cards.get(index as usize).copied()
    }

    pub(super) fn publish_region(&self, key: u32, pd: PdId, region: &Region, serial: u64) {
        if let (Some(area), Some(index)) = (&self.area, index_of(key)) {
            let at = CARDS * 8 + index * ENTRY;
            area.store(at + 8, region.iova());
            area.store(at + 16, region.len() as u64);
            area.store(at + 24, serial);
            area.store(at, entry_word(key, pd, region.access()));
        }
    }

    pub(super) fn withdraw_region(&self, key: u32) {
        if let (Some(area), Some(index)) = (&self.area, index_of(key)) {
            area.store(CARDS * 8 + index * ENTRY, 0);
        }
    }
}
