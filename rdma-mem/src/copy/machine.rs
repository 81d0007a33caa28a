//! The copies in assembly: short ones in a few moves, long ones by the C library's `memcpy`.
//!
//! Short sizes use pairs of moves that overlap in the middle, as `memcpy` itself does: a byte may be copied twice, which
//! invariant 1 of the parent module allows. Numbers in comments cite that module.

use core::arch::asm;

/// Up to here moves in line beat the call.
const SHORT: usize = 64;

/// # Safety
///
/// As for [`crate::copy()`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if len > SHORT {
        // SAFETY: the same conditions.
        unsafe { long(dst, src, len) }
    } else {
        // SAFETY: the same conditions, and `len <= SHORT`.
        unsafe { short(dst, src, len) }
    }
}

#[inline(never)]
unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
    let memcpy: unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void = libc::memcpy;
    // SAFETY: calls memcpy by the C convention (5), whose own conditions (valid, disjoint ranges) are the caller's; it
    // accesses just the two ranges, with ordinary loads and stores (2).
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
    // SAFETY: as above.
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
/// As for [`crate::copy()`], and `len <= 64`.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn short(dst: *mut u8, src: *const u8, len: usize) {
    // Each arm moves the first and the last bytes of the ranges: it stays within `len` bytes of both pointers, which the
    // caller promises to be valid. Only registers and the destination change: no stack, no flags.
    match len {
        0 => {}
        // SAFETY: one byte of each range (2).
        1 => unsafe {
            asm!(
                "mov {t}, byte ptr [{s}]",
                "mov byte ptr [{d}], {t}",
                s = in(reg) src, d = in(reg) dst, t = out(reg_byte) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: the first two and the last two bytes (2).
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
        // SAFETY: the first four and the last four bytes (2).
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
        // SAFETY: the first eight and the last eight bytes (2).
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
        // SAFETY: the first sixteen and the last sixteen bytes (2).
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
        // SAFETY: the first 32 and the last 32 bytes (2); `len <= 64`, so that is all of them.
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
/// As for [`crate::copy()`], and `len <= 64`.
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn short(dst: *mut u8, src: *const u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: the first eight and the last eight bytes of ranges of 8 to 16 bytes (2).
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
        // SAFETY: the first 16 and the last 16 bytes of ranges of 17 to 32 bytes (2).
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
        // SAFETY: the same conditions.
        _ => unsafe { long(dst, src, len) },
    }
}

/// Loads 8 bytes from any address, as eight relaxed byte loads would.
///
/// # Safety
///
/// `src` is valid for reads of 8 bytes; no plain write of this program to them happens at the same time.
#[inline]
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let value: u64;
    // SAFETY: reads the 8 bytes that the caller promises; changes only the output register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {v}, qword ptr [{s}]", s = in(reg) src, v = out(reg) value, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("ldr {v}, [{s}]", s = in(reg) src, v = out(reg) value, options(nostack, preserves_flags, readonly));
    }
    value
}
