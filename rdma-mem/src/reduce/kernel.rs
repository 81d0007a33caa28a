//! The loop over blocks of elements, once for each instruction set.
//!
//! Numbers in comments cite the [parent module](super).

use super::Job;
use super::element::{Arithmetic, Element, Half, Operator};

/// A set of kernels.
pub(super) trait Machine {
    /// Reduces elements of type `E`.
    fn run<E: Element, O: Operator<E>>(job: Job<'_>);

    /// Reduces 16-bit floating-point numbers.
    fn run_f16<A: Arithmetic>(job: Job<'_>) {
        Self::run::<Half, A>(job);
    }
}

/// An operation on all elements of a value of type `V`, which is a number of vectors.
trait Combine<V> {
    /// Replaces each element of `acc` by its reduction with that of `more`.
    fn combine(acc: &mut V, more: &V);
}

/// The operation `O` on elements of type `E`, written for one element.
struct Lanes<E, O>(core::marker::PhantomData<(E, O)>);

impl<V: Vectors, E: Element, O: Operator<E>> Combine<V> for Lanes<E, O> {
    #[inline(always)]
    fn combine(acc: &mut V, more: &V) {
        let lanes = size_of::<V>() / size_of::<E>();
        // SAFETY: from_raw_parts_mut requires `lanes` aligned, initialized elements that nothing
        // else accesses: they lie in `acc`, borrowed exclusively, whose bytes are values of E, as
        // any bytes are, and whose alignment is that of vectors.
        let acc = unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(acc).cast::<E>(), lanes) };
        // SAFETY: from_raw_parts requires `lanes` aligned, initialized elements that nothing
        // writes: they lie in `more`, which is borrowed, is of type V too, and has the same
        // alignment.
        let more = unsafe { core::slice::from_raw_parts(core::ptr::from_ref(more).cast::<E>(), lanes) };
        for (acc, more) in acc.iter_mut().zip(more) {
            *acc = O::apply(*acc, *more);
        }
    }
}

/// A number of vectors, as one value.
///
/// # Safety
///
/// The type is plain data without padding, valid whatever its bytes are, aligned to at least 8.
unsafe trait Vectors: Copy {
    const ZERO: Self;
}

/// Reduces the `len` bytes from byte `at` on, at most a block of type `V`.
#[inline(always)]
fn reduce_by_copies<V: Vectors, C: Combine<V>>(job: Job<'_>, at: usize, len: usize) {
    assert!(len <= size_of::<V>() && at + len <= job.into.len());
    let load = |operand: &crate::SharedSlice<'_>| {
        let mut block = V::ZERO;
        // SAFETY: copy requires `len` readable bytes without plain writes, which the operand has
        // from `at` on, as was checked (1), and a local of as many.
        unsafe { crate::copy(core::ptr::from_mut(&mut block).cast(), operand.as_ptr().wrapping_add(at), len) };
        block
    };
    let Some((first, more)) = job.operands.split_first() else { return };
    let mut acc = load(first);
    for operand in more {
        C::combine(&mut acc, &load(operand));
    }
    // SAFETY: copy requires `len` writable bytes without plain accesses, which `into` has from `at`
    // on, as was checked (1), and a local of as many.
    unsafe { crate::copy(job.into.as_mut_ptr().wrapping_add(at), core::ptr::from_ref(&acc).cast(), len) };
}

// The vector registers of a big-endian processor do not hold bytes in the order of memory.
#[cfg(all(
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")),
    not(any(miri, feature = "portable"))
))]
pub(super) mod vectors;
#[cfg(all(
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")),
    not(any(miri, feature = "portable"))
))]
pub(super) use vectors::Native;

#[cfg(any(
    test,
    miri,
    feature = "portable",
    not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))
))]
pub(super) mod portable;
#[cfg(any(
    miri,
    feature = "portable",
    not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))
))]
pub(super) use portable::Portable as Native;
