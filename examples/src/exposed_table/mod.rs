//! A hash table in memory that a process exposes: peers read it without its processor.
//!
//! The owner alone changes the table ([`ExposedTable`]; [`table`] decides how). A peer finds a key
//! by one-sided reads ([`Reader`]): both buckets of the key at once, then the block that a slot
//! names ([`block`] is the format).
//!
//! A read may meet a write. Three rules make a reader get whole values only:
//!
//! * A change writes a new block, then one slot of 8 bytes that names the block, and last the
//!   block's checksum. Devices keep aligned words of 8 bytes whole; nothing else is assumed of a
//!   read.
//! * The block that was replaced is left alone for a grace time.
//! * A block has a checksum of its key, sequence number and value. A reader that finds another key
//!   or a wrong checksum in a block begins again at the bucket, and gives up after some attempts.
//!
//! The order of the two reads matters: the reader waits for the first before it posts the second.

pub mod block;
mod reader;
pub mod table;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdma::{ExposedRegion, ProtectionDomain, RemoteAccess, RemoteSlice};

pub use self::block::{MAX_KEY, MAX_VALUE};
pub use self::reader::{Counts, Found, Reader};
use self::table::{Change, Table};
pub use self::table::{Refusal, Result};
use crate::Failure;

/// A value and its sequence number, which every change of the key increases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Sequence number of the change that set the value.
    pub sequence: u64,
    /// The value.
    pub bytes: Bytes,
}

/// A table and its memory.
#[derive(Debug)]
pub struct ExposedTable {
    /// Held while a change is written, so that the changes of a slot are written in order.
    table: Mutex<Table>,
    memory: ExposedRegion,
}

impl ExposedTable {
    /// An empty table for `keys` keys in `len` bytes of memory that peers may read. The memory of
    /// an old value is used again after `grace`.
    ///
    /// # Errors
    /// If the memory does not hold the buckets; errors of the device, and memory that is short.
    pub fn new(pd: &ProtectionDomain, keys: usize, len: usize, grace: Duration) -> std::result::Result<Self, Failure> {
        let least = Table::bucket_bytes(keys);
        if least >= len {
            let advice = "give more --memory or fewer --keys";
            return Err(Failure::usage(format!("{keys} keys need more than {least} bytes of memory; {advice}")));
        }
        let memory = pd.allocate_exposed(len, RemoteAccess::READ)?;
        Ok(Self { table: Mutex::new(Table::new(keys, len, grace)), memory })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the table and the number of its buckets, which a [`Reader`] needs.
    ///
    /// # Errors
    /// None while the memory is exposed.
    pub fn place(&self) -> rdma::Result<(RemoteSlice, u64)> {
        Ok((self.memory.remote(..)?, self.lock().buckets() as u64))
    }

    /// The value of a key, if it exists.
    ///
    /// # Errors
    /// Errors of access to the memory.
    pub fn get(&self, key: &[u8]) -> rdma::Result<Option<Value>> {
        let table = self.lock();
        let Some((sequence, place)) = table.get(key) else { return Ok(None) };
        let mut bytes = vec![0; place.len()];
        self.memory.copy_out(place.start, &mut bytes)?;
        Ok(Some(Value { sequence, bytes: bytes.into() }))
    }

    /// Sets the value of a key and returns its new sequence number. With `expected`, only if the
    /// key has this sequence number, or does not exist for 0.
    ///
    /// # Errors
    /// Errors of access to the memory; inside, the reason why nothing has changed.
    pub fn put(&self, key: &[u8], value: &[u8], expected: Option<u64>) -> rdma::Result<Result<u64>> {
        self.change(|table, now| table.put(key, value, expected, now))
    }

    /// Removes a key. With `expected`, only if the key has this sequence number.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn delete(&self, key: &[u8], expected: Option<u64>) -> rdma::Result<Result<u64>> {
        self.change(|table, now| table.delete(key, expected, now))
    }

    /// Writes a change: `Release` makes the block visible before the slot that names it, and that
    /// before the block's checksum.
    fn change(&self, decide: impl FnOnce(&mut Table, Instant) -> Result<Change>) -> rdma::Result<Result<u64>> {
        let mut table = self.lock();
        let change = match decide(&mut table, Instant::now()) {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(refusal)),
        };
        change.write(
            |offset, bytes| self.memory.copy_in(offset, bytes),
            |offset, word| self.memory.store_u64(offset, word.to_le(), Ordering::Release),
        )?;
        Ok(Ok(change.sequence))
    }
}
