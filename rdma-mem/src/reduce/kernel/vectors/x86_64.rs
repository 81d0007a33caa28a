//! The kernels of x86_64: SSE2, which every such processor has, and AVX2 with F16C.
//!
//! AVX-512 is no faster for operands that are not in the first-level cache, and its target features
//! need a newer Rust.
//!
//! Numbers in comments cite [`reduce`](super::super::super).

use core::arch::asm;
use core::arch::x86_64::__m128i;

use super::super::super::Job;
use super::super::{Arithmetic, Combine, Element, Half, Lanes, Machine, Operator};
use super::Word;

kernel! {
    sse2, core::arch::x86_64::__m128i, xmm_reg,
    load "movdqu {a}, [{p}]" "movdqu {b}, [{p} + 16]" "movdqu {c}, [{p} + 32]" "movdqu {d}, [{p} + 48]",
    store "movdqu [{p}], {a}" "movdqu [{p} + 16], {b}" "movdqu [{p} + 32], {c}" "movdqu [{p} + 48], {d}",
    stream "movntdq [{p}], {a}" "movntdq [{p} + 16], {b}" "movntdq [{p} + 32], {c}" "movntdq [{p} + 48], {d}",
    fence "sfence"
}

kernel! {
    avx2, core::arch::x86_64::__m256i, ymm_reg, features "avx2,f16c",
    load "vmovdqu {a}, [{p}]" "vmovdqu {b}, [{p} + 32]" "vmovdqu {c}, [{p} + 64]" "vmovdqu {d}, [{p} + 96]",
    store "vmovdqu [{p}], {a}" "vmovdqu [{p} + 32], {b}" "vmovdqu [{p} + 64], {c}" "vmovdqu [{p} + 96], {d}",
    stream "vmovntdq [{p}], {a}" "vmovntdq [{p} + 32], {b}" "vmovntdq [{p} + 64], {c}" "vmovntdq [{p} + 96], {d}",
    fence "sfence"
}

/// The kernels for the instructions that this processor has.
pub(in super::super::super) struct Native;

impl Machine for Native {
    fn run<E: Element, O: Operator<E>>(job: Job<'_>) {
        if has_avx2() {
            // SAFETY: the kernel requires the instructions, just detected (2).
            unsafe { avx2::reduce::<Lanes<E, O>>(job) }
        } else {
            Sse2::run::<E, O>(job);
        }
    }

    fn run_f16<A: Arithmetic>(job: Job<'_>) {
        if has_avx2() {
            // SAFETY: the kernel requires the instructions, just detected (2), and so does
            // `HalfLanes`.
            unsafe { avx2::reduce::<HalfLanes<A>>(job) }
        } else {
            Sse2::run_f16::<A>(job);
        }
    }
}

/// The kernels for the instructions that every x86_64 processor has.
pub(in super::super::super) struct Sse2;

impl Machine for Sse2 {
    fn run<E: Element, O: Operator<E>>(job: Job<'_>) {
        // SAFETY: the kernel requires SSE2, which every x86_64 processor has (2).
        unsafe { sse2::reduce::<Lanes<E, O>>(job) }
    }
}

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// The operation `A` on numbers of 16 bits, by F16C. Only [`Native`] names it, after it has
/// detected F16C.
struct HalfLanes<A>(core::marker::PhantomData<A>);

/// The numbers of half a block.
type Halves = [__m128i; 4];

impl<A: Arithmetic> Combine<avx2::Block> for HalfLanes<A> {
    #[inline(always)]
    fn combine(acc: &mut avx2::Block, more: &avx2::Block) {
        // SAFETY: transmute requires types of one size that are valid with any bytes: vectors.
        let mut parts: [Halves; 2] = unsafe { core::mem::transmute(*acc) };
        // SAFETY: transmute requires types of one size that are valid with any bytes: vectors.
        let more: [Halves; 2] = unsafe { core::mem::transmute(*more) };
        for (part, more) in parts.iter_mut().zip(more) {
            // SAFETY: widen requires F16C, which this type's only user has detected (2).
            let mut wide = unsafe { widen(*part) };
            // SAFETY: widen requires F16C, which this type's only user has detected (2).
            let more = unsafe { widen(more) };
            Lanes::<f32, A>::combine(&mut wide, &more);
            // SAFETY: narrow requires F16C, which this type's only user has detected (2).
            *part = unsafe { narrow(wide) };
        }
        // SAFETY: transmute requires types of one size that are valid with any bytes: vectors.
        *acc = unsafe { core::mem::transmute::<[Halves; 2], avx2::Block>(parts) };
    }
}

impl<A: Arithmetic> Combine<Word> for HalfLanes<A> {
    #[inline(always)]
    fn combine(acc: &mut Word, more: &Word) {
        Lanes::<Half, A>::combine(acc, more);
    }
}

/// Converts 32 numbers to `f32`.
///
/// # Safety
///
/// The processor has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen([i, j, k, l]: Halves) -> avx2::Block {
    let (a, b, c, d);
    // SAFETY: converts registers to registers.
    unsafe {
        asm!(
            "vcvtph2ps {a}, {i}",
            "vcvtph2ps {b}, {j}",
            "vcvtph2ps {c}, {k}",
            "vcvtph2ps {d}, {l}",
            i = in(xmm_reg) i, j = in(xmm_reg) j, k = in(xmm_reg) k, l = in(xmm_reg) l,
            a = out(ymm_reg) a, b = out(ymm_reg) b, c = out(ymm_reg) c, d = out(ymm_reg) d,
            options(pure, nomem, nostack),
        );
    }
    [a, b, c, d]
}

/// Rounds 32 numbers to nearest even.
///
/// # Safety
///
/// The processor has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn narrow([i, j, k, l]: avx2::Block) -> Halves {
    let (a, b, c, d);
    // SAFETY: converts registers to registers.
    unsafe {
        asm!(
            "vcvtps2ph {a}, {i}, 0",
            "vcvtps2ph {b}, {j}, 0",
            "vcvtps2ph {c}, {k}, 0",
            "vcvtps2ph {d}, {l}, 0",
            i = in(ymm_reg) i, j = in(ymm_reg) j, k = in(ymm_reg) k, l = in(ymm_reg) l,
            a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
            options(pure, nomem, nostack),
        );
    }
    [a, b, c, d]
}
