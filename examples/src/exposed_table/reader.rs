//! The reader of a peer's table.

use rdma::RemoteSlice;
use rdma_net::Remote;

use super::Value;
use super::block::{BUCKET_LEN, Hash, Opened, Slot, open};
use crate::Failure;

/// Times that a key is read again that changes meanwhile.
const RETRIES: usize = 8;
/// Bytes of a block that is copied: a longer one keeps the buffer that it was read into.
const COPY: usize = 4096;

/// How a reader has found values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Searches that met a change and began again.
    pub retries: u64,
    /// Searches that were given up.
    pub given_up: u64,
}

/// The result of reads in search of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key exists.
    Value(Value),
    /// The key does not exist.
    Absent,
    /// The owner must be asked: the key changes all the time, shares its tag with another, or
    /// the device cannot read.
    Unknown,
}

/// Reads the table of a peer.
#[derive(Debug)]
pub struct Reader {
    remote: Remote,
    /// The memory of the table.
    memory: RemoteSlice,
    /// Number of its buckets.
    buckets: usize,
    counts: Counts,
}

/// The result of one search.
enum Search {
    Found(Value),
    Absent,
    /// The key's tag is that of another key.
    Ambiguous,
    /// The table has changed meanwhile.
    Changed,
}

impl Reader {
    /// A reader of the table in a peer's memory, with this number of buckets; `None` if the memory
    /// holds no such table.
    #[must_use]
    pub fn new(remote: Remote, memory: RemoteSlice, buckets: u64) -> Option<Self> {
        let buckets = usize::try_from(buckets).ok()?;
        let len = buckets.checked_mul(BUCKET_LEN)?;
        let is_table = buckets.is_power_of_two() && buckets >= 2 && len as u64 <= memory.len();
        is_table.then_some(Self { remote, memory, buckets, counts: Counts::default() })
    }

    /// How values were found so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Reads the value of a key.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn get(&mut self, key: &[u8]) -> Result<Found, Failure> {
        let attempts = if self.remote.can_read() { 1 + RETRIES } else { 0 };
        for _ in 0..attempts {
            match self.search(key).await? {
                Search::Found(value) => return Ok(Found::Value(value)),
                Search::Absent => return Ok(Found::Absent),
                Search::Ambiguous => break,
                Search::Changed => self.counts.retries += 1,
            }
        }
        self.counts.given_up += 1;
        Ok(Found::Unknown)
    }

    /// Searches the table once.
    async fn search(&self, key: &[u8]) -> Result<Search, Failure> {
        let (mut result, hash) = (Search::Absent, Hash::of(key));
        let [one, two] = hash.buckets(self.buckets).map(|number| self.part(number * BUCKET_LEN, BUCKET_LEN));
        // Both buckets, with one doorbell.
        let buckets = self.remote.fetch_all([one?, two?]).await?;
        for slot in buckets.iter().flat_map(|bucket| Slot::candidates(bucket, hash)) {
            let block = self.remote.fetch(self.part(slot.offset, slot.len)?).await?;
            match open(&block, key) {
                Opened::Found(sequence, value) => {
                    return Ok(Search::Found(Value { sequence, bytes: block.into_bytes(COPY).slice(value) }));
                }
                Opened::OtherKey if matches!(result, Search::Changed) => {}
                Opened::OtherKey => result = Search::Ambiguous,
                Opened::Torn => result = Search::Changed,
            }
        }
        Ok(result)
    }

    /// A part of the table.
    fn part(&self, start: usize, len: usize) -> Result<RemoteSlice, Failure> {
        Ok(self.memory.slice(start..start + len)?)
    }
}
