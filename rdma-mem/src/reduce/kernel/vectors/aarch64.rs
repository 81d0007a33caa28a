//! The kernel of aarch64: NEON, which every processor of the Linux targets has.
//!
//! Numbers in comments cite [`reduce`](super::super::super).

use core::arch::aarch64::uint8x16_t;
use core::arch::asm;

use super::super::super::Job;
use super::super::{Arithmetic, Combine, Element, Half, Lanes, Machine, Operator};
use super::Word;

#[cfg(not(target_feature = "neon"))]
compile_error!("the kernel of aarch64 needs NEON");

// A later release store is ordered after non-temporal stores too, so there is no fence.
kernel! {
    neon, core::arch::aarch64::uint8x16_t, vreg,
    load "ldp {a:q}, {b:q}, [{p}]" "ldp {c:q}, {d:q}, [{p}, #32]",
    store "stp {a:q}, {b:q}, [{p}]" "stp {c:q}, {d:q}, [{p}, #32]",
    stream "stnp {a:q}, {b:q}, [{p}]" "stnp {c:q}, {d:q}, [{p}, #32]",
}

/// The kernels for the instructions that every aarch64 processor has.
pub(in super::super::super) struct Native;

impl Machine for Native {
    fn run<E: Element, O: Operator<E>>(job: Job<'_>) {
        // SAFETY: the kernel requires NEON, for which this crate is compiled, as was checked (2).
        unsafe { neon::reduce::<Lanes<E, O>>(job) }
    }

    fn run_f16<A: Arithmetic>(job: Job<'_>) {
        // SAFETY: the kernel requires NEON, for which this crate is compiled, as was checked (2).
        unsafe { neon::reduce::<HalfLanes<A>>(job) }
    }
}

/// The operation `A` on numbers of 16 bits, by the instructions that convert them to `f32`.
struct HalfLanes<A>(core::marker::PhantomData<A>);

/// The numbers of half a block.
type Halves = [uint8x16_t; 2];

impl<A: Arithmetic> Combine<neon::Block> for HalfLanes<A> {
    #[inline(always)]
    fn combine(acc: &mut neon::Block, more: &neon::Block) {
        for half in [0, 2] {
            let mut wide = widen([acc[half], acc[half + 1]]);
            Lanes::<f32, A>::combine(&mut wide, &widen([more[half], more[half + 1]]));
            [acc[half], acc[half + 1]] = narrow(wide);
        }
    }
}

impl<A: Arithmetic> Combine<Word> for HalfLanes<A> {
    #[inline(always)]
    fn combine(acc: &mut Word, more: &Word) {
        Lanes::<Half, A>::combine(acc, more);
    }
}

/// Converts 16 numbers to `f32`.
#[inline(always)]
fn widen([i, j]: Halves) -> neon::Block {
    let (a, b, c, d);
    // SAFETY: converts registers to registers, by instructions of NEON (2).
    unsafe {
        asm!(
            "fcvtl {a:v}.4s, {i:v}.4h",
            "fcvtl2 {b:v}.4s, {i:v}.8h",
            "fcvtl {c:v}.4s, {j:v}.4h",
            "fcvtl2 {d:v}.4s, {j:v}.8h",
            i = in(vreg) i, j = in(vreg) j,
            a = out(vreg) a, b = out(vreg) b, c = out(vreg) c, d = out(vreg) d,
            options(pure, nomem, nostack),
        );
    }
    [a, b, c, d]
}

/// Rounds 16 numbers to nearest even, which is the rounding that Rust programs run with.
#[inline(always)]
fn narrow([a, b, c, d]: neon::Block) -> Halves {
    let (i, j);
    // SAFETY: converts registers to registers, by instructions of NEON (2).
    unsafe {
        asm!(
            "fcvtn {i:v}.4h, {a:v}.4s",
            "fcvtn2 {i:v}.8h, {b:v}.4s",
            "fcvtn {j:v}.4h, {c:v}.4s",
            "fcvtn2 {j:v}.8h, {d:v}.4s",
            a = in(vreg) a, b = in(vreg) b, c = in(vreg) c, d = in(vreg) d,
            i = out(vreg) i, j = out(vreg) j,
            options(pure, nomem, nostack),
        );
    }
    [i, j]
}
