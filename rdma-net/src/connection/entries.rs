//! The operations of batches before they begin.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma::Buffer;

use super::operations::Request;

/// An operation of a batch.
pub(super) struct Entry {
    pub(super) request: Request,
    /// Of a fetch: the bytes to fetch.
    pub(super) fetches: Option<usize>,
    /// Until the operation is posted.
    pub(super) buffer: Option<Buffer>,
    /// Of a fetch that was posted: the part of the buffer behind the bytes.
    pub(super) rest: Option<Buffer>,
}

/// Memory of batches that have ended, for further ones of the connection.
#[derive(Default)]
pub(super) struct EntryLists(Mutex<Vec<Vec<Entry>>>);

impl EntryLists {
    /// Lists that are kept. A list has as many entries as operations may be in flight.
    const MOST: usize = 4;

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Vec<Entry> {
        self.lock().pop().unwrap_or_default()
    }

    /// Keeps an empty list.
    pub(super) fn keep(&self, list: Vec<Entry>) {
        let mut lists = self.lock();
        if list.capacity() > 0 && lists.len() < Self::MOST {
            lists.push(list);
        }
    }
}
