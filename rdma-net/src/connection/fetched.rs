//! The results of reads, and the buffers that a connection keeps for further reads.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma::{Buffer, MadeIn, ProtectionDomain, Result, Verb};

/// Shortest buffer, so that one buffer serves reads of several lengths.
const MIN_LEN: usize = 4096;

/// A connection's buffers for fetches, those that no fetch uses: as many as may be in flight, the
/// longest ones. Slices may be longer than messages, for which the node keeps other buffers.
#[derive(Debug)]
pub(super) struct FetchBuffers {
    spares: Mutex<Vec<Buffer>>,
    /// Buffers that are kept.
    most: usize,
    made_in: MadeIn,
}

impl FetchBuffers {
    pub(super) fn new(most: u32) -> Self {
        Self { spares: Mutex::default(), most: most as usize, made_in: MadeIn::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the shortest buffer of at least `len` bytes, or a new one.
    pub(super) fn take(&self, pd: &ProtectionDomain, len: usize) -> Result<Buffer> {
        self.made_in.check(Verb::PostSend)?;
        let spare = {
            let mut spares = self.lock();
            let long_enough = spares.iter().enumerate().filter(|(_, buffer)| buffer.len() >= len);
            let at = long_enough.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at);
            at.map(|at| spares.swap_remove(at))
        };
        let new_len = len.checked_next_power_of_two().unwrap_or(len).max(MIN_LEN);
        spare.map_or_else(|| pd.allocate(new_len), Ok)
    }

    /// Keeps a buffer, and returns one that is not needed.
    fn put(&self, mut buffer: Buffer) -> Option<Buffer> {
        let mut spares = self.lock();
        if spares.len() < self.most {
            spares.push(buffer);
            return None;
        }
        if let Some(shortest) = spares.iter_mut().min_by_key(|spare| spare.len()) {
            if shortest.len() < buffer.len() {
                std::mem::swap(shortest, &mut buffer);
            }
        }
        Some(buffer)
    }
}

/// The contents of a peer's memory, read by [`Remote::fetch`](super::Remote::fetch).
///
/// The bytes lie in a buffer that the connection uses again once they are dropped.
pub struct Fetched {
    /// Present until the drop: the bytes, and the rest of their buffer.
    buffers: Option<(Buffer, Buffer)>,
    spares: Arc<FetchBuffers>,
}

impl Fetched {
    pub(super) fn new(spares: &Arc<FetchBuffers>, bytes: Buffer, rest: Buffer) -> Self {
        Self { buffers: Some((bytes, rest)), spares: Arc::clone(spares) }
    }
}

impl Deref for Fetched {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffers.as_ref().map_or(&[], |(bytes, _)| bytes)
    }
}

impl AsRef<[u8]> for Fetched {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let Some((mut buffer, rest)) = self.buffers.take() else { return };
        if !self.spares.made_in.is_forked() && buffer.unsplit(rest).is_ok() {
            drop(self.spares.put(buffer));
        }
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched").field("len", &self.len()).finish_non_exhaustive()
    }
}
