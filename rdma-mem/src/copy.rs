//! Copies to and from memory that others may write or read at the same time.
//!
//! # Why assembly
//!
//! `ptr::copy` on memory that a peer writes is a data race: undefined behaviour, whatever the processor would do. Loops
//! of relaxed byte atomics are defined, and are compiled to byte loops: 50 times slower than `memcpy`. An `asm!` block
//! may do anything that *some* Rust code could have done there; the compiler does not look inside. We say what that code
//! is:
//!
//! 1. **Meaning.** [`copy()`] means: for each byte, in some order, perhaps more than once, one relaxed atomic load from the
//!    source and one relaxed atomic store to the destination. Racing stores leave in each byte what one of them stored.
//! 2. **Refinement.** The instructions used are ordinary loads and stores of the processor (vector ones, `rep movs` and
//!    non-temporal ones in `memcpy` included). On x86_64 and aarch64 those are relaxed atomic for every byte they touch, and
//!    nothing but the two ranges is touched; so each execution is one that 1 allows.
//! 3. **No more than 1.** The compiler must take an `asm!` without `nomem` for a reader and writer of all memory that it
//!    could reach, so it neither caches bytes across the block nor drops the copy.
//! 4. **Order.** A copy orders nothing by itself. glibc ends its non-temporal path with `sfence`, so on x86_64 a store
//!    after [`copy()`] is seen after it; [`copy_ordered`] stores its last word with release order, as the memory model wants.
//! 5. **The called `memcpy`** is the C library's, reached with the C calling convention: the stack is aligned (no
//!    `nostack`), every register that C may change is clobbered (`clobber_abi`), and it neither unwinds nor keeps pointers.
//!
//! Under Miri, on other processors, and with feature `portable` (for thread sanitizer), 1 is done literally.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

#[cfg(not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))))]
mod machine;
#[cfg(not(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64")))))]
use machine as imp;

#[cfg(any(test, miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(any(miri, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use portable as imp;

/// Copies `len` bytes, each as if by a relaxed atomic load and a relaxed atomic store.
///
/// Use it wherever one of the two ranges may be touched by a device, a peer process or another thread during the copy.
/// What is read is then some mixture of old and new bytes, never undefined behaviour. Costs what `memcpy` costs.
///
/// # Safety
///
/// 1. `src` is valid for reads of `len` bytes and `dst` for writes, during the whole call (`len` 0 asks for nothing);
/// 2. the ranges do not overlap;
/// 3. no plain (non-atomic) access of this program to `dst`, and no plain write to `src`, happens at the same time.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the same conditions.
    unsafe { imp::copy(dst, src, len) }
}

/// Copies like [`copy()`], and makes the last bytes visible last.
///
/// Who sees the last aligned 8 bytes of the destination changed (by an acquire load) sees all bytes before them: what a
/// peer that spins on the last word of a message relies on. Those 8 bytes are stored in one store. If the destination does
/// not end on a multiple of 8, what lies in its last aligned 8 bytes is stored in ascending aligned pieces of 4, 2 and 1 bytes.
///
/// # Safety
///
/// As for [`copy()`].
#[inline]
pub unsafe fn copy_ordered(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // The tail is what lies in the aligned 8-byte word that holds the last byte.
    let tail = ((dst.addr() + len - 1) & 7) + 1;
    if tail >= 8 && len >= 8 {
        let body = len - 8;
        // SAFETY: a prefix of both ranges; the conditions of `copy` are the caller's.
        unsafe { imp::copy(dst, src, body) };
        // SAFETY: `body + 8 == len`, so the 8 bytes are the end of the source range.
        let value = unsafe { imp::load_u64(src.wrapping_add(body)) };
        let last = dst.wrapping_add(body);
        // SAFETY: aligned: `dst + len` is a multiple of 8, because the tail is 8 bytes; valid, and only raced with by
        // atomic accesses, by the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(last.cast()) };
        // Release orders the body's stores, also those inside the assembly, before this one (3, 4).
        word.store(value, Ordering::Release);
        return;
    }
    let tail = tail.min(len);
    let body = len - tail;
    // SAFETY: a prefix of both ranges.
    unsafe { imp::copy(dst, src, body) };
    // SAFETY: `body + tail == len`: the rest of both ranges.
    unsafe { store_pieces(dst.wrapping_add(body), src.wrapping_add(body), tail) };
}

/// Stores up to 8 bytes in ascending naturally aligned pieces, each in one release store.
///
/// # Safety
///
/// As for [`copy()`].
unsafe fn store_pieces(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let mut bytes = [0_u8; 4];
        let to = dst.wrapping_add(at);
        let piece = match to.addr() & 3 {
            0 if len - at >= 4 => 4,
            0 | 2 if len - at >= 2 => 2,
            _ => 1,
        };
        // SAFETY: `at + piece <= len`, so the source bytes are in range; `bytes` is a local that nobody else sees.
        unsafe { imp::copy(bytes.as_mut_ptr(), src.wrapping_add(at), piece) };
        // SAFETY (all three): aligned by the match above, `piece` bytes of the destination range, raced with by atomic
        // accesses only.
        match piece {
            4 => {
                // SAFETY: see above.
                let word = unsafe { AtomicU32::from_ptr(to.cast()) };
                word.store(u32::from_ne_bytes(bytes), Ordering::Release);
            }
            2 => {
                // SAFETY: see above.
                let word = unsafe { AtomicU16::from_ptr(to.cast()) };
                word.store(u16::from_ne_bytes([bytes[0], bytes[1]]), Ordering::Release);
            }
            _ => {
                // SAFETY: see above.
                let byte = unsafe { AtomicU8::from_ptr(to) };
                byte.store(bytes[0], Ordering::Release);
            }
        }
        at += piece;
    }
}

#[cfg(test)]
mod tests;
