//! The atomic words that rings and doorbells are made of, behind a trait so that loom can stand in
//! for the hardware.
//!
//! Two processes share these words. The orderings are named after what the protocols need, not
//! after C++: `*_ordered` operations take part in a store-then-load handshake (Dekker's): of two
//! sides that each store one word and then load the other's, at least one sees the other's store.

use core::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word that two sides share.
pub(crate) trait Word {
    /// Loads; what the other side wrote before the value it `store`d is visible afterwards.
    fn load(&self) -> u64;
    /// Stores; publishes everything written before.
    fn store(&self, value: u64);
    /// `load` that is not ordered before any `store_ordered` or `swap_ordered` that precedes it in
    /// this thread.
    fn load_ordered(&self) -> u64;
    /// `store` that is not ordered after any `load_ordered` that follows it in this thread.
    fn store_ordered(&self, value: u64);
    /// Swaps, both `load_ordered` and `store_ordered`.
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

    // Sequentially consistent accesses instead of fences: one `xchg` (x86) or `stlr`/`ldar`
    // (aarch64), and all of them are in one total order, which is what the handshake needs.
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

/// Loom takes sequentially consistent accesses for acquire and release, but models the fences, so
/// the model uses those.
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
