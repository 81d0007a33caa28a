//! Aligned atomic words on memory that others may touch.
//!
//! # Safety
//!
//! Every function here is an access through the standard library's atomics, and has the same two conditions:
//!
//! 1. `address` is aligned to the size of the word, and the word is valid for reads (and, where the function writes, for
//!    writes) during the call;
//! 2. no plain (non-atomic) access of this program to the word happens at the same time. Accesses by this crate, by other
//!    processes and by devices may.
//!
//! A copy of this crate and a word may meet at one address: the accesses then differ in size, about which Rust's memory
//! model is silent, and which the assembly of [`copy`](crate::copy()) keeps out of its sight; on the supported processors
//! each aligned word is read and written whole.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

macro_rules! words {
    ($($atomic:ident, $int:ident, $load:ident, $store:ident, $add:ident, $cas:ident;)*) => {$(
        #[doc = concat!("Loads a `", stringify!($int), "`.")]
        ///
        /// # Panics
        ///
        /// If `order` is `Release` or `AcqRel`, as the standard library's atomics do.
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        #[must_use]
        pub unsafe fn $load(address: *const $int, order: Ordering) -> $int {
            // SAFETY: from_ptr wants an aligned pointer that is valid for the atomic's use (condition 1) and no racing
            // plain access (condition 2). A load does not write, so losing `const` is harmless.
            let word = unsafe { $atomic::from_ptr(address.cast_mut()) };
            word.load(order)
        }

        #[doc = concat!("Stores a `", stringify!($int), "`.")]
        ///
        /// # Panics
        ///
        /// If `order` is `Acquire` or `AcqRel`, as the standard library's atomics do.
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        pub unsafe fn $store(address: *mut $int, value: $int, order: Ordering) {
            // SAFETY: conditions 1 and 2, as in the load.
            let word = unsafe { $atomic::from_ptr(address) };
            word.store(value, order);
        }

        #[doc = concat!("Adds to a `", stringify!($int), "`, wrapping around, and returns what it was.")]
        ///
        /// # Safety
        ///
        /// The two conditions of the [module](self).
        #[inline]
        pub unsafe fn $add(address: *mut $int, value: $int, order: Ordering) -> $int {
            // SAFETY: conditions 1 and 2, as in the load.
            let word = unsafe { $atomic::from_ptr(address) };
            word.fetch_add(value, order)
        }

        #[doc = concat!("Stores `new` in a `", stringify!($int), "` if it is `current`; returns what it was, as `Ok` if it was.")]
        ///
        /// # Errors
        ///
        /// The value found, if it was not `current`; nothing was written.
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
            // SAFETY: conditions 1 and 2, as in the load.
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
        // SAFETY: `address` points to a live, aligned local that nothing else touches; so in all the blocks below.
        let was = unsafe { fetch_add_u64(address, 2, Ordering::AcqRel) };
        assert_eq!(was, 5);
        // SAFETY: as above.
        let was = unsafe { compare_exchange_u64(address, 7, 9, Ordering::AcqRel) };
        assert_eq!(was, Ok(7));
        // SAFETY: as above.
        let was = unsafe { compare_exchange_u64(address, 7, 11, Ordering::Release) };
        assert_eq!(was, Err(9));
        // SAFETY: as above.
        let was = unsafe { load_u64(address, Ordering::Acquire) };
        assert_eq!(was, 9);
        // SAFETY: as above.
        unsafe { store_u64(address, u64::MAX, Ordering::Release) };
        // SAFETY: as above.
        unsafe { fetch_add_u64(address, 1, Ordering::Relaxed) };
        assert_eq!(memory, 0);
    }
}
