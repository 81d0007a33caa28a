//! The atomic words of rings and doorbells, behind a trait so that loom can replace the hardware.
//!
//! Two processes share these words. The orderings are named after the needs of the protocols. The
//! `*_ordered` operations take part in a store-then-load handshake (Dekker's): when each of two
//! sides stores one word and then loads the other's, at least one side sees the other's store.

use core::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word that two sides share.
pub(crate) trait Word {
    /// Loads with acquire: writes that precede the other side's `store` of the value are visible.
    fn load(&self) -> u64;
    /// Stores with release: publishes everything written before.
    fn store(&self, value: u64);
    /// A `load` that is not reordered before a preceding `store_ordered` or `swap_ordered` of this
    /// thread.
    fn load_ordered(&self) -> u64;
    /// A `store` that is not reordered after a following `load_ordered` of this thread.
    fn store_ordered(&self, value: u64);
    /// Swaps; orders as `load_ordered` and as `store_ordered`.
    fn swap_ordered(&self, value: u64) -> u64;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        Self::load(self, Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        Self::store(self, value, Ordering::Release);
    }

    // Sequentially consistent accesses instead of fences: each is one `xchg` (x86) or `stlr`/`ldar`
    // (aarch64), and all of them are in one total order, which the handshake needs.
    #[inline]
    fn load_ordered(&self) -> u64 {
        Self::load(self, Ordering::SeqCst)
    }

    #[inline]
    fn store_ordered(&self, value: u64) {
        Self::store(self, value, Ordering::SeqCst);
    }

    #[inline]
    fn swap_ordered(&self, value: u64) -> u64 {
        self.swap(value, Ordering::SeqCst)
    }
}

/// Loom treats sequentially consistent accesses as acquire and release, but models fences, so the
/// model uses fences.
#[cfg(all(loom, test))]
impl Word for loom::sync::atomic::AtomicU64 {
    fn load(&self) -> u64 {
        Self::load(self, Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        Self::store(self, value, Ordering::Release);
    }

    fn load_ordered(&self) -> u64 {
        loom::sync::atomic::fence(Ordering::SeqCst);
        Self::load(self, Ordering::Acquire)
    }

    fn store_ordered(&self, value: u64) {
        Self::store(self, value, Ordering::Release);
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    fn swap_ordered(&self, value: u64) -> u64 {
        loom::sync::atomic::fence(Ordering::SeqCst);
        let old = self.swap(value, Ordering::AcqRel);
        loom::sync::atomic::fence(Ordering::SeqCst);
        old
    }
}
