//! What a pool has counted.

use super::stock::Counts;

/// Counts of one class of a [`Pool`](super::Pool), from [`Pool::stats`](super::Pool::stats).
///
/// The counts are taken one after the other while other threads go on: they may differ by what
/// happened in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of each buffer.
    pub size: usize,
    /// The most buffers that the class may have.
    pub limit: usize,
    /// Buffers that exist: those of the slabs that are registered.
    pub buffers: usize,
    /// Slabs that are registered, each in every domain.
    pub slabs: usize,
    /// Bytes of these slabs.
    pub bytes: usize,
    /// Buffers that were taken since the pool was made.
    pub taken: u64,
    /// Buffers that came back since the pool was made.
    pub returned: u64,
    /// Takes that had to wait since the pool was made.
    pub waits: u64,
    /// The most buffers that were in use or in a core's cache at once. At least as many as were
    /// ever in use.
    pub most_out: usize,
}

impl PoolStats {
    pub(super) fn new(size: usize, limit: usize, slabs: usize, bytes: usize, counts: Counts) -> Self {
        let Counts { registered: buffers, taken, returned, waits, most_out } = counts;
        Self { size, limit, buffers, slabs, bytes, taken, returned, waits, most_out }
    }

    /// Buffers that are in use: taken, and not returned yet.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.taken.saturating_sub(self.returned)
    }
}
