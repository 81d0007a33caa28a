//! The copy in Rust code: relaxed atomic accesses, by words where both ends are aligned.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// # Safety
///
/// The three conditions of [`crate::copy()`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let (to, from) = (dst.wrapping_add(at), src.wrapping_add(at).cast_mut());
        if to.addr() % 8 == 0 && from.addr() % 8 == 0 && len - at >= 8 {
            // SAFETY: from_ptr requires an aligned word for atomic accesses alone: alignment was
            // just checked, and `at + 8 <= len`, so the word is in the source (conditions 1, 3). A
            // load does not write, so the source may be read-only.
            let from = unsafe { AtomicU64::from_ptr(from.cast()) };
            // SAFETY: from_ptr requires an aligned word for atomic accesses alone: alignment was
            // just checked, and `at + 8 <= len`, so the word is in the destination (conditions 1,
            // 3).
            let to = unsafe { AtomicU64::from_ptr(to.cast()) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 8;
        } else {
            // SAFETY: from_ptr requires a byte for atomic accesses alone: `at < len`, so the byte
            // is in the source (conditions 1, 3). A load does not write.
            let from = unsafe { AtomicU8::from_ptr(from) };
            // SAFETY: from_ptr requires a byte for atomic accesses alone: `at < len`, so the byte
            // is in the destination (conditions 1, 3).
            let to = unsafe { AtomicU8::from_ptr(to) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 1;
        }
    }
}

/// # Safety
///
/// The three conditions of [`crate::copy()`].
#[cfg_attr(
    not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))),
    allow(dead_code, reason = "tests compare the copies only")
)]
pub(super) unsafe fn copy_for_peer(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `copy` has this function's three conditions, on the same arguments.
    unsafe { copy(dst, src, len) }
}

/// Nothing is fetched ahead.
#[cfg_attr(
    not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))),
    allow(dead_code, reason = "tests compare the copies only")
)]
pub(super) fn prefetch(_: *const u8, _: usize) {}

/// Loads 8 bytes from any address.
///
/// # Safety
///
/// `src` is valid for reads of 8 bytes, and no plain write of this program to them happens at the
/// same time.
#[cfg_attr(
    not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))),
    allow(dead_code, reason = "tests compare the copies only")
)]
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: copy requires 8 readable bytes without plain writes, which is this function's
    // condition, and a destination of 8 bytes elsewhere, which is a local.
    unsafe { copy(bytes.as_mut_ptr(), src, 8) };
    u64::from_ne_bytes(bytes)
}

/// Loads an aligned word in one load.
///
/// # Safety
///
/// As for [`load_u64`]; `word` is aligned.
#[cfg_attr(
    not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))),
    allow(dead_code, reason = "tests compare the copies only")
)]
pub(super) unsafe fn load_word(word: *const u64) -> u64 {
    // SAFETY: load_u64 requires an aligned word that is valid for reads, without plain writes: this
    // function's condition. The standard library's atomics require writable memory; on the
    // processors that have no assembly here, a relaxed load of a word is an ordinary load all the
    // same.
    unsafe { crate::word::load_u64(word, Ordering::Relaxed) }
}
