//! The copies in assembly: short ones in a few moves, long ones through the C library's `memcpy`.
//!
//! Short sizes use pairs of moves that overlap in the middle, as `memcpy` does: a byte may be
//! copied twice, which rule 1 of the parent module allows. Numbers in comments cite the parent
//! module.

use core::arch::asm;

/// Up to this size, in bytes, inline moves are faster than the call.
const SHORT: usize = 64;

/// # Safety
///
/// The three conditions of [`crate::copy()`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if len > SHORT {
        // SAFETY: `long` has this function's three conditions, on the same arguments.
        unsafe { long(dst, src, len) }
    } else {
        // SAFETY: `short` has this function's three conditions, and requires `len <= SHORT`, just
        // tested.
        unsafe { short(dst, src, len) }
    }
}

/// # Safety
///
/// The three conditions of [`crate::copy()`].
#[inline(never)]
unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
    let memcpy: unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void = libc::memcpy;
    // SAFETY: the block calls memcpy by the C convention (5). memcpy requires valid, disjoint
    // ranges: conditions 1 and 2 of `copy`. It accesses the two ranges only, by ordinary loads and
    // stores (2).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "call {memcpy}",
            memcpy = in(reg) memcpy,
            in("rdi") dst,
            in("rsi") src,
            in("rdx") len,
            clobber_abi("C"),
        );
    }
    // SAFETY: the block calls memcpy by the C convention (5). memcpy requires valid, disjoint
    // ranges: conditions 1 and 2 of `copy`. It accesses the two ranges only, by ordinary loads and
    // stores (2).
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "blr {memcpy}",
            memcpy = in(reg) memcpy,
            in("x0") dst,
            in("x1") src,
            in("x2") len,
            clobber_abi("C"),
        );
    }
}

/// # Safety
///
/// The three conditions of [`crate::copy()`], and `len <= SHORT`.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn short(dst: *mut u8, src: *const u8, len: usize) {
    // Each arm moves the first and the last bytes of both ranges, so it stays in the `len` bytes
    // that are valid (condition 1 of `copy`). The moves change registers and the destination, but
    // not the stack or the flags.
    match len {
        0 => {}
        // SAFETY: moves the only byte of the range (2).
        1 => unsafe {
            asm!(
                "mov {t}, byte ptr [{s}]",
                "mov byte ptr [{d}], {t}",
                s = in(reg) src, d = in(reg) dst, t = out(reg_byte) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first two and the last two of at least 2 bytes (2).
        2..=3 => unsafe {
            asm!(
                "movzx {t:e}, word ptr [{s}]",
                "movzx {u:e}, word ptr [{s} + {n} - 2]",
                "mov word ptr [{d}], {t:x}",
                "mov word ptr [{d} + {n} - 2], {u:x}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(reg) _, u = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first four and the last four of at least 4 bytes (2).
        4..=7 => unsafe {
            asm!(
                "mov {t:e}, dword ptr [{s}]",
                "mov {u:e}, dword ptr [{s} + {n} - 4]",
                "mov dword ptr [{d}], {t:e}",
                "mov dword ptr [{d} + {n} - 4], {u:e}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(reg) _, u = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first eight and the last eight of at least 8 bytes (2).
        8..=16 => unsafe {
            asm!(
                "mov {t}, qword ptr [{s}]",
                "mov {u}, qword ptr [{s} + {n} - 8]",
                "mov qword ptr [{d}], {t}",
                "mov qword ptr [{d} + {n} - 8], {u}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(reg) _, u = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first sixteen and the last sixteen of at least 17 bytes (2).
        17..=32 => unsafe {
            asm!(
                "movups {t}, xmmword ptr [{s}]",
                "movups {u}, xmmword ptr [{s} + {n} - 16]",
                "movups xmmword ptr [{d}], {t}",
                "movups xmmword ptr [{d} + {n} - 16], {u}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(xmm_reg) _, u = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first 32 and the last 32 of at least 33 bytes (2); `len` is at most 64,
        // so these are all bytes.
        _ => unsafe {
            asm!(
                "movups {t}, xmmword ptr [{s}]",
                "movups {u}, xmmword ptr [{s} + 16]",
                "movups {v}, xmmword ptr [{s} + {n} - 32]",
                "movups {w}, xmmword ptr [{s} + {n} - 16]",
                "movups xmmword ptr [{d}], {t}",
                "movups xmmword ptr [{d} + 16], {u}",
                "movups xmmword ptr [{d} + {n} - 32], {v}",
                "movups xmmword ptr [{d} + {n} - 16], {w}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                t = out(xmm_reg) _, u = out(xmm_reg) _, v = out(xmm_reg) _, w = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        },
    }
}

/// # Safety
///
/// The three conditions of [`crate::copy()`], and `len <= SHORT`.
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn short(dst: *mut u8, src: *const u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: moves the first eight and the last eight of 8 to 16 bytes, so it stays in the
        // valid ranges (condition 1 of `copy`), by ordinary loads and stores (2).
        8..=16 => unsafe {
            asm!(
                "ldr {t}, [{s}]",
                "ldr {u}, [{se}]",
                "str {t}, [{d}]",
                "str {u}, [{de}]",
                s = in(reg) src, d = in(reg) dst,
                se = in(reg) src.wrapping_add(len - 8), de = in(reg) dst.wrapping_add(len - 8),
                t = out(reg) _, u = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: moves the first 16 and the last 16 of 17 to 32 bytes, so it stays in the valid
        // ranges (condition 1 of `copy`), by ordinary loads and stores (2).
        17..=32 => unsafe {
            asm!(
                "ldr {t:q}, [{s}]",
                "ldr {u:q}, [{se}]",
                "str {t:q}, [{d}]",
                "str {u:q}, [{de}]",
                s = in(reg) src, d = in(reg) dst,
                se = in(reg) src.wrapping_add(len - 16), de = in(reg) dst.wrapping_add(len - 16),
                t = out(vreg) _, u = out(vreg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: `long` has this function's conditions but the one on `len`.
        _ => unsafe { long(dst, src, len) },
    }
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies past the caches where that makes the next reader on another core faster.
///
/// # Safety
///
/// The three conditions of [`crate::copy()`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy_for_peer(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(LINE).min(len);
    let whole = (len - head) / LINE * LINE;
    if whole == 0 || !*READS_MEMORY_FASTER {
        // SAFETY: `copy` has this function's three conditions, on the same arguments.
        return unsafe { copy(dst, src, len) };
    }
    // SAFETY: `head <= len`, so both ranges are the beginnings of ranges that meet the three
    // conditions.
    unsafe { copy(dst, src, head) };
    // SAFETY: `stream` requires the three conditions, which parts of the ranges meet (`head + whole
    // <= len`), a multiple of LINE that is not 0 (just tested), and an aligned destination, which
    // `head` bytes lead to: a shorter `head` is all of `len`, which leaves no whole line.
    unsafe { stream(dst.wrapping_add(head), src.wrapping_add(head), whole) };
    let done = head + whole;
    // SAFETY: `done <= len`, so both ranges are the ends of ranges that meet the three conditions.
    unsafe { copy(dst.wrapping_add(done), src.wrapping_add(done), len - done) };
}

/// # Safety
///
/// The three conditions of [`crate::copy()`].
#[cfg(target_arch = "aarch64")]
#[inline]
pub(super) unsafe fn copy_for_peer(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `copy` has this function's three conditions, on the same arguments.
    unsafe { copy(dst, src, len) }
}

/// Fetches the lines of `len` bytes into this core's cache. Any address will do.
#[inline]
pub(super) fn prefetch(src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(LINE) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the intrinsic requires a processor with the instruction: every x86-64 has it. The
        // prefetch changes nothing that a program can observe, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (src, len);
}

/// Whether a core reads lines faster from memory than lines that another core has just changed.
///
/// AMD's processors fetch a changed line from the cache of the other core, or of the other core
/// complex, one after the other: 5 to 40 ns a line in a stream that memory serves in 3 ns. Other
/// processors were not measured, and keep their caches.
#[cfg(target_arch = "x86_64")]
static READS_MEMORY_FASTER: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
    // SAFETY: the intrinsic requires a processor with the instruction: every x86-64 has it.
    #[allow(unused_unsafe, reason = "the intrinsic is safe in later versions of Rust")]
    let vendor = unsafe { core::arch::x86_64::__cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
});

/// Copies whole lines by non-temporal stores, which go to memory and leave no copy in a cache.
///
/// # Safety
///
/// The three conditions of [`crate::copy()`]; `dst` is aligned to LINE, and `len` is a multiple of
/// LINE and not 0.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: each turn moves the next LINE bytes, by ordinary loads and non-temporal stores (2) to
    // aligned addresses; `len` is a multiple of LINE above 0, so the last turn ends at the end of
    // both ranges. The fence orders the stores before later ones (4). Neither stack nor memory
    // outside of the ranges is used.
    unsafe {
        asm!(
            "2:",
            "movups {a}, xmmword ptr [{s}]",
            "movups {b}, xmmword ptr [{s} + 16]",
            "movups {c}, xmmword ptr [{s} + 32]",
            "movups {e}, xmmword ptr [{s} + 48]",
            "movntps xmmword ptr [{d}], {a}",
            "movntps xmmword ptr [{d} + 16], {b}",
            "movntps xmmword ptr [{d} + 32], {c}",
            "movntps xmmword ptr [{d} + 48], {e}",
            "add {s}, 64",
            "add {d}, 64",
            "sub {n}, 64",
            "jnz 2b",
            "sfence",
            s = inout(reg) src => _, d = inout(reg) dst => _, n = inout(reg) len => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Loads an aligned word in one load.
///
/// # Safety
///
/// As for [`load_u64`]; `word` is aligned.
#[inline]
pub(super) unsafe fn load_word(word: *const u64) -> u64 {
    // SAFETY: load_u64 requires 8 readable bytes without plain writes: this function's condition.
    unsafe { load_u64(word.cast()) }
}

/// Loads 8 bytes from any address, like eight relaxed byte loads.
///
/// # Safety
///
/// `src` is valid for reads of 8 bytes, and no plain write of this program to them happens at the
/// same time.
#[inline]
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let value: u64;
    // SAFETY: reads the 8 bytes at `src`, valid by the function's condition, by one ordinary load
    // (2), and changes nothing but the output register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {v}, qword ptr [{s}]", s = in(reg) src, v = out(reg) value, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: reads the 8 bytes at `src`, valid by the function's condition, by one ordinary load
    // (2), and changes nothing but the output register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("ldr {v}, [{s}]", s = in(reg) src, v = out(reg) value, options(nostack, preserves_flags, readonly));
    }
    value
}
