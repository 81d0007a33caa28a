//! Copies to and from memory that other processes or devices may access at the same time.
//!
//! # Why assembly
//!
//! `ptr::copy` on memory that a peer writes is a data race: undefined behaviour on every processor.
//! A loop of relaxed byte atomics is defined, but compiles to a loop over bytes, 50 times slower
//! than `memcpy`. An `asm!` block may do anything that *some* Rust code could do in its place, and
//! the compiler does not look inside. The blocks of this module stand for this code:
//!
//! 1. **Meaning.** For each byte, in some order and perhaps more than once, [`copy()`] does one
//!    relaxed atomic load from the source and one relaxed atomic store to the destination. If
//!    stores race, each byte holds the value of one of them.
//! 2. **Refinement.** The instructions are ordinary loads and stores of the processor (including
//!    vector ones, `rep movs` and the non-temporal ones of `memcpy`). On x86_64 and aarch64 these
//!    are relaxed atomic for every byte, and they access the two ranges only; so rule 1 allows
//!    every execution.
//! 3. **No more than 1.** The compiler assumes that an `asm!` block without `nomem` reads and
//!    writes all memory that the block could reach. It therefore neither keeps bytes in registers
//!    across the block nor drops the copy.
//! 4. **Order.** A copy orders no other access. glibc and [`copy_for_peer`] end their non-temporal
//!    stores with `sfence`, so on x86_64 a store after the copy becomes visible after the copy;
//!    [`copy_ordered`] stores its last word with release order, as the memory model demands.
//! 5. **The called `memcpy`** is the C library's, called by the C convention: the stack is aligned
//!    (no `nostack`), every register that C may change is clobbered (`clobber_abi`), and `memcpy`
//!    neither unwinds nor keeps pointers.
//!
//! Under Miri, on other processors, and with feature `portable` (for thread sanitizer), the copy is
//! Rust code that does what rule 1 says.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

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
/// For memory that a device, a peer process or another thread may access during the copy: the
/// result is then a mixture of old and new bytes, never undefined behaviour. The copy costs as much
/// as `memcpy`.
///
/// # Safety
///
/// 1. `src` is valid for reads of `len` bytes and `dst` for writes, during the whole call (with a
///    `len` of 0 both may have any value);
/// 2. the ranges do not overlap;
/// 3. no plain (non-atomic) access of this program to `dst`, and no plain write to `src`, happens
///    at the same time.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `imp::copy` has this function's three conditions, on the same arguments.
    unsafe { imp::copy(dst, src, len) }
}

/// From this size in bytes on, [`copy_for_peer`] may store past the caches.
const LONG: usize = 16 << 10;

/// Bytes that [`copy_from_peer`] copies at a time, and how far ahead of them it fetches.
const BLOCK: usize = 512;
const AHEAD: usize = 512;

/// Copies like [`copy()`], to memory that another core reads next.
///
/// A core may read bytes faster from memory than from the cache of the core that has just stored
/// them. On such processors, copies of 16 KiB and more bypass the caches; then this core should not
/// read the bytes soon.
///
/// # Safety
///
/// The three conditions of [`copy()`].
#[inline]
pub unsafe fn copy_for_peer(dst: *mut u8, src: *const u8, len: usize) {
    if len < LONG {
        // SAFETY: `imp::copy` has this function's three conditions, on the same arguments.
        unsafe { imp::copy(dst, src, len) }
    } else {
        // SAFETY: `imp::copy_for_peer` has this function's three conditions, on the same arguments.
        unsafe { imp::copy_for_peer(dst, src, len) }
    }
}

/// Copies like [`copy_ordered`], from another core's cache or from one that the cores share.
///
/// Lines of such caches arrive late: copies of 16 KiB and more fetch them ahead. From memory the
/// processor fetches faster by itself, so that [`copy_ordered`] is better there.
///
/// # Safety
///
/// The three conditions of [`copy()`].
#[inline]
pub unsafe fn copy_from_peer(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    if len >= LONG {
        // At least 8 bytes are left, so that `copy_ordered` has the whole last word.
        while at + BLOCK + 8 <= len {
            imp::prefetch(src.wrapping_add(at + AHEAD), BLOCK);
            // SAFETY: `at + BLOCK < len`, so both ranges are parts of ranges that meet the three
            // conditions.
            unsafe { imp::copy(dst.wrapping_add(at), src.wrapping_add(at), BLOCK) };
            at += BLOCK;
        }
    }
    // SAFETY: `at <= len`, so both ranges are the ends of ranges that meet the three conditions.
    unsafe { copy_ordered(dst.wrapping_add(at), src.wrapping_add(at), len - at) }
}

/// Copies like [`copy()`], and makes the last bytes visible last.
///
/// A reader that sees, by an acquire load, a change of the destination's last aligned 8 bytes sees
/// all bytes before them: a peer that spins on the last word of a message relies on this. Those 8
/// bytes are stored in one store. If the destination does not end on a multiple of 8, the bytes in
/// its last aligned 8 bytes are stored in ascending aligned pieces of 4, 2 and 1 bytes.
///
/// # Safety
///
/// The three conditions of [`copy()`].
#[inline]
pub unsafe fn copy_ordered(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // The tail is the part of the destination in the aligned 8-byte word of the last byte.
    let tail = (((dst.addr() + len - 1) & 7) + 1).min(len);
    let body = len - tail;
    // SAFETY: `body < len`, so both ranges are prefixes of ranges that meet the three conditions.
    unsafe { imp::copy(dst, src, body) };
    let (dst, src) = (dst.wrapping_add(body), src.wrapping_add(body));
    if tail < 8 {
        // SAFETY: `body + tail == len`, so both ranges are the ends of ranges that meet the three
        // conditions.
        return unsafe { store_pieces(dst, src, tail) };
    }
    // SAFETY: load_u64 requires 8 readable bytes without plain writes: `tail` is 8, so these are
    // the last 8 bytes of the source (1, 3).
    let value = unsafe { imp::load_u64(src) };
    // SAFETY: from_ptr requires an aligned word, valid for writes, and atomic accesses alone: a
    // tail of 8 bytes ends, so it begins, on a multiple of 8; it is the end of the destination (1,
    // 3).
    let word = unsafe { AtomicU64::from_ptr(dst.cast()) };
    // Release order puts the stores of the body, including those in assembly, before this one (3,
    // 4).
    word.store(value, Ordering::Release);
}

/// Loads an aligned word in one load, with acquire order. The memory may be read-only, which the
/// standard library's atomics do not allow.
///
/// # Safety
///
/// `word` is aligned and valid for reads, and no plain write of this program to it happens at the
/// same time.
#[inline]
pub(crate) unsafe fn load_word(word: *const u64) -> u64 {
    // SAFETY: `imp::load_word` has this function's conditions, on the same argument.
    let value = unsafe { imp::load_word(word) };
    fence(Ordering::Acquire);
    value
}

/// Stores up to 8 bytes in ascending naturally aligned pieces, each in one release store.
///
/// # Safety
///
/// The three conditions of [`copy()`].
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
        // SAFETY: `at + piece <= len`, so the source range lies in one that meets the conditions;
        // `bytes` is a local of 4 bytes, and `piece` is at most 4.
        unsafe { imp::copy(bytes.as_mut_ptr(), src.wrapping_add(at), piece) };
        match piece {
            4 => {
                // SAFETY: from_ptr requires alignment, which the match above found to be 4, and 4
                // bytes for atomic accesses alone, which lie in the destination as `at + 4 <= len`
                // (1, 3).
                let word = unsafe { AtomicU32::from_ptr(to.cast()) };
                word.store(u32::from_ne_bytes(bytes), Ordering::Release);
            }
            2 => {
                // SAFETY: from_ptr requires alignment, which the match above found to be 2, and 2
                // bytes for atomic accesses alone, which lie in the destination as `at + 2 <= len`
                // (1, 3).
                let word = unsafe { AtomicU16::from_ptr(to.cast()) };
                word.store(u16::from_ne_bytes([bytes[0], bytes[1]]), Ordering::Release);
            }
            _ => {
                // SAFETY: from_ptr requires one byte for atomic accesses alone: `at < len` (1, 3).
                let byte = unsafe { AtomicU8::from_ptr(to) };
                byte.store(bytes[0], Ordering::Release);
            }
        }
        at += piece;
    }
}

#[cfg(test)]
mod tests;
