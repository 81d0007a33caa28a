//! The buffers into which a node reads its peers' offers, kept for further reads.
//!
//! The connections of a node share them: a read takes the buffer that came back last, whose lines
//! are still in the processor's cache, however many connections take turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma::{Buffer, MadeIn, ProtectionDomain, Result};

/// Shortest buffer in bytes, so that one buffer serves reads of several lengths.
const MIN_LEN: usize = 4096;
/// A read takes a buffer of at most this many times the length of a new one.
const SLACK: usize = 2;

/// The buffers of a node that no read uses.
#[derive(Debug, Default)]
pub(super) struct ReadBuffers {
    spares: Mutex<Spares>,
    made_in: MadeIn,
}

#[derive(Debug, Default)]
struct Spares {
    /// In the order in which they came back.
    buffers: Vec<Buffer>,
    /// Bytes of all buffers, at most `limit`.
    len: usize,
    limit: usize,
}

impl Spares {
    /// Takes the buffers that are too many, those that have waited longest.
    fn trim(&mut self) -> Vec<Buffer> {
        let mut excess = self.len.saturating_sub(self.limit);
        let is_excess = |buffer: &Buffer| {
            let is_excess = excess > 0;
            excess = excess.saturating_sub(buffer.len());
            is_excess
        };
        let count = self.buffers.iter().map(is_excess).take_while(|is_excess| *is_excess).count();
        let trimmed: Vec<_> = self.buffers.drain(..count).collect();
        self.len -= trimmed.iter().map(|buffer| buffer.len()).sum::<usize>();
        trimmed
    }
}

impl ReadBuffers {
    fn lock(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection use the buffers for reads of up to `len` bytes. As long as it does, the
    /// buffers may be longer by as much.
    pub(super) fn join(self: &Arc<Self>, len: usize) -> ReadShare {
        let len = buffer_len(len);
        let mut spares = self.lock();
        spares.limit = spares.limit.saturating_add(len);
        drop(spares);
        ReadShare { all: Arc::clone(self), len }
    }

    /// Bytes of all buffers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len
    }
}

/// The part of a connection in the buffers of its node.
#[derive(Debug)]
pub(super) struct ReadShare {
    all: Arc<ReadBuffers>,
    /// Bytes by which the limit is higher.
    len: usize,
}

impl ReadShare {
    /// Takes a buffer of at least `len` bytes.
    pub(super) fn take(&self, pd: &ProtectionDomain, len: usize) -> Result<Buffer> {
        let new_len = buffer_len(len);
        let most = new_len.saturating_mul(SLACK);
        let spare = {
            let mut spares = self.all.lock();
            let serves = |buffer: &Buffer| (len..=most).contains(&buffer.len());
            let at = spares.buffers.iter().rposition(serves);
            let spare = at.map(|at| spares.buffers.remove(at));
            spares.len -= spare.as_ref().map_or(0, |buffer| buffer.len());
            spare
        };
        spare.map_or_else(|| pd.allocate(new_len), Ok)
    }

    /// Keeps a buffer for another read. Returns those that are too many, to be dropped once the
    /// caller holds no lock.
    pub(super) fn keep(&self, buffer: Buffer) -> Vec<Buffer> {
        let mut spares = self.all.lock();
        spares.len += buffer.len();
        spares.buffers.push(buffer);
        spares.trim()
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        if self.all.made_in.is_forked() {
            return;
        }
        let mut spares = self.all.lock();
        spares.limit = spares.limit.saturating_sub(self.len);
        let trimmed = spares.trim();
        drop(spares);
        drop(trimmed);
    }
}

/// The length of a buffer for a read of `len` bytes.
fn buffer_len(len: usize) -> usize {
    let len = len.max(MIN_LEN);
    len.checked_next_power_of_two().unwrap_or(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pd() -> ProtectionDomain {
        rdma::open(&"soft0".parse().unwrap()).unwrap().context.alloc_pd().unwrap()
    }

    #[test]
    fn a_read_takes_the_buffer_that_came_back_last_whichever_connection_used_it() {
        let (pd, all) = (pd(), Arc::new(ReadBuffers::default()));
        let (one, two) = (all.join(1 << 20), all.join(1 << 20));
        let [first, second, third] = [(); 3].map(|()| one.take(&pd, 10_000).unwrap());
        let (address, other) = (first.as_ptr(), third.as_ptr());
        assert!([second, first].into_iter().all(|buffer| one.keep(buffer).is_empty()));
        assert_eq!(two.take(&pd, 16_000).unwrap().as_ptr(), address);
        assert!(two.keep(third).is_empty());
        assert_eq!(one.take(&pd, 9000).unwrap().as_ptr(), other);
    }

    #[test]
    fn a_short_read_leaves_long_buffers_for_long_reads() {
        let (pd, all) = (pd(), Arc::new(ReadBuffers::default()));
        let share = all.join(1 << 20);
        assert!(share.keep(pd.allocate(1 << 20).unwrap()).is_empty());
        assert_eq!(share.take(&pd, 5000).unwrap().len(), 8192);
        assert_eq!(share.take(&pd, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(share.take(&pd, 1).unwrap().len(), MIN_LEN);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn the_connections_that_there_are_bound_the_buffers() {
        let (pd, all) = (pd(), Arc::new(ReadBuffers::default()));
        let (one, two) = (all.join(8000), all.join(8000));
        let [first, second, third] = [(); 3].map(|()| one.take(&pd, 8192).unwrap());
        let address = first.as_ptr();
        assert!(one.keep(first).is_empty() && two.keep(second).is_empty());
        let trimmed = two.keep(third);
        assert_eq!(trimmed.len(), 1);
        assert_eq!(trimmed[0].as_ptr(), address, "the one that has waited longest");
        assert_eq!(all.len(), 2 * 8192);
        drop(one);
        assert_eq!(all.len(), 8192);
        drop(two);
        assert_eq!(all.len(), 0);
    }
}
