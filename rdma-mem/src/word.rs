//! Aligned atomic words on memory that other processes or devices may access.
//!
//! # Safety
//!
//! Every function is one access through the standard library's atomics, with the same two
//! conditions:
//!
//! 1. `address` is aligned to the size of the word, and the word is valid for reads (and, where the
//!    function writes, for writes) during the call;
//! 2. no plain (non-atomic) access of this program to the word happens at the same time. Accesses
//!    by this crate, by other processes and by devices may happen.
//!
//! A [`copy`](crate::copy()) and a word may access the same address. Their accesses then differ in
//! size, for which Rust's memory model has no rule; the assembly of the copy hides them from the
//! model, and the supported processors read and write each aligned word whole.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

macro_rules! words {
    ($($atomic:ident, $int:ident, $load:ident, $store:ident, $add:ident, $cas:ident;)*) => {$(
        #[doc = concat!("Loads a `", stringify!($int), "`.")]
        ///
        /// # Panics
        ///
        /// If `order` is `Release` or `AcqRel`, like the standard library's atomics.
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        #[must_use]
        pub unsafe fn $load(address: *const $int, order: Ordering) -> $int {
            // SAFETY: from_ptr requires an aligned word, valid while the atomic is used (condition
            // 1), and no plain access meanwhile (condition 2). A load does not write, so the word
            // may be read-only.
            let word = unsafe { $atomic::from_ptr(address.cast_mut()) };
            word.load(order)
        }

        #[doc = concat!("Stores a `", stringify!($int), "`.")]
        ///
        /// # Panics
        ///
        /// If `order` is `Acquire` or `AcqRel`, like the standard library's atomics.
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        pub unsafe fn $store(address: *mut $int, value: $int, order: Ordering) {
            // SAFETY: from_ptr requires an aligned word, valid while the atomic is used (condition
            // 1), and no plain access meanwhile (condition 2).
            let word = unsafe { $atomic::from_ptr(address) };
            word.store(value, order);
        }

        #[doc = concat!("Adds to a `", stringify!($int), "`, wrapping around, and returns the old value.")]
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        pub unsafe fn $add(address: *mut $int, value: $int, order: Ordering) -> $int {
            // SAFETY: from_ptr requires an aligned word, valid while the atomic is used (condition
            // 1), and no plain access meanwhile (condition 2).
            let word = unsafe { $atomic::from_ptr(address) };
            word.fetch_add(value, order)
        }

        #[doc = concat!("Stores `new` in a `", stringify!($int), "` that is `current`; returns the old value.")]
        ///
        /// # Errors
        ///
        /// The value, if it is not `current`; no store happened.
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        pub unsafe fn $cas(address: *mut $int, current: $int, new: $int, order: Ordering) -> Result<$int, $int> {
            let failure = match order {
                Ordering::Release => Ordering::Relaxed,
                Ordering::AcqRel => Ordering::Acquire,
                other => other,
            };
            // SAFETY: from_ptr requires an aligned word, valid while the atomic is used (condition
            // 1), and no plain access meanwhile (condition 2).
            let word = unsafe { $atomic::from_ptr(address) };
            word.compare_exchange(current, new, order, failure)
        }
    )*};
}

words! {
    AtomicU32, u32, load_u32, store_u32, fetch_add_u32, compare_exchange_u32;
    AtomicU64, u64, load_u64, store_u64, fetch_add_u64, compare_exchange_u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_behave_as_the_standard_librarys_atomics() {
        let mut memory = 5_u64;
        let address = &raw mut memory;
        // SAFETY: the five calls require an aligned word (1) without plain accesses (2): `address`
        // is a local `u64`, used by these calls alone until the block ends.
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one argument for one word")]
        unsafe {
            assert_eq!(fetch_add_u64(address, 2, Ordering::AcqRel), 5);
            assert_eq!(compare_exchange_u64(address, 7, 9, Ordering::AcqRel), Ok(7));
            assert_eq!(compare_exchange_u64(address, 7, 11, Ordering::Release), Err(9));
            assert_eq!(load_u64(address, Ordering::Acquire), 9);
            store_u64(address, u64::MAX, Ordering::Release);
            fetch_add_u64(address, 1, Ordering::Relaxed);
        }
        assert_eq!(memory, 0);
    }
}
