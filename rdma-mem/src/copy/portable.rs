//! The copy as its definition says it: relaxed atomic accesses, in words where both ends allow it.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// # Safety
///
/// As for [`crate::copy()`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let (to, from) = (dst.wrapping_add(at), src.wrapping_add(at).cast_mut());
        if to.addr() % 8 == 0 && from.addr() % 8 == 0 && len - at >= 8 {
            // SAFETY: aligned and inside the source, checked above; racing accesses are atomic by the caller's promise.
            let from = unsafe { AtomicU64::from_ptr(from.cast()) };
            // SAFETY: as above, inside the destination.
            let to = unsafe { AtomicU64::from_ptr(to.cast()) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 8;
        } else {
            // SAFETY: bytes are always aligned; `at < len`, so inside the source.
            let from = unsafe { AtomicU8::from_ptr(from) };
            // SAFETY: as above, inside the destination.
            let to = unsafe { AtomicU8::from_ptr(to) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 1;
        }
    }
}

/// # Safety
///
/// `src` is valid for reads of 8 bytes; as for [`crate::copy()`] otherwise.
#[cfg_attr(
    not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))),
    allow(dead_code, reason = "tests compare the copies only")
)]
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the caller's promise for the source; the destination is a local.
    unsafe { copy(bytes.as_mut_ptr(), src, 8) };
    u64::from_ne_bytes(bytes)
}
