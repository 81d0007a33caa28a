//! The loop over blocks of vector registers, for the instruction sets that have a kernel.
//!
//! Numbers in comments cite [`reduce`](super::super).

use super::super::Job;
use super::{Combine, Vectors, reduce_by_copies};

/// Defines a module with `reduce`, the loop for one instruction set.
///
/// The templates of the assembly have the registers `a` to `d` and the address `p`. The fence is
/// for processors whose stores past the caches are not ordered before a later release store.
macro_rules! kernel {
    (
        $module:ident, $vector:ty, $class:ident, $(features $features:literal,)?
        load $($load:literal)*, store $($store:literal)*, stream $($stream:literal)*, $(fence $fence:literal)?
    ) => {
        mod $module {
            use core::arch::asm;

            use $crate::reduce::Job;
            use $crate::reduce::kernel::vectors::{Word, remainder};
            use $crate::reduce::kernel::{Combine, Vectors};

            /// The vectors of one block.
            pub(super) type Block = [$vector; 4];

            // SAFETY: Vectors requires plain data that is valid with any bytes, aligned to 8:
            // vectors.
            unsafe impl Vectors for Block {
                // SAFETY: zeroed requires a type for which zeros are valid: vectors.
                const ZERO: Self = unsafe { core::mem::zeroed() };
            }

            /// # Safety
            ///
            /// A block is readable at `from`, without plain writes meanwhile; condition 2.
            #[inline]
            $(#[target_feature(enable = $features)])?
            unsafe fn load(from: *const u8) -> Block {
                let (a, b, c, d);
                // SAFETY: ordinary loads of the block at `from`, which exist (2), and nothing else.
                unsafe {
                    asm!(
                        $($load,)*
                        p = in(reg) from, a = out($class) a, b = out($class) b, c = out($class) c, d = out($class) d,
                        options(nostack, preserves_flags, readonly),
                    );
                }
                [a, b, c, d]
            }

            /// # Safety
            ///
            /// A block is writable at `to`, without plain accesses meanwhile; condition 2.
            #[inline]
            $(#[target_feature(enable = $features)])?
            unsafe fn store(to: *mut u8, [a, b, c, d]: Block) {
                // SAFETY: ordinary stores to the block at `to`, which exist (2), and nothing else.
                unsafe {
                    asm!(
                        $($store,)*
                        p = in(reg) to, a = in($class) a, b = in($class) b, c = in($class) c, d = in($class) d,
                        options(nostack, preserves_flags),
                    );
                }
            }

            /// # Safety
            ///
            /// A block is writable at `to`, without plain accesses meanwhile; `to` is aligned to
            /// the vector; condition 2.
            #[inline]
            $(#[target_feature(enable = $features)])?
            unsafe fn stream(to: *mut u8, [a, b, c, d]: Block) {
                // SAFETY: non-temporal stores to the block at `to`, which is aligned, and nothing
                // else; where a later release store does not order them, `reduce` has a fence.
                unsafe {
                    asm!(
                        $($stream,)*
                        p = in(reg) to, a = in($class) a, b = in($class) b, c = in($class) c, d = in($class) d,
                        options(nostack, preserves_flags),
                    );
                }
            }

            /// # Safety
            ///
            /// Condition 2 (the type of `job` has condition 1).
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn reduce<C: Combine<Block> + Combine<Word>>(job: Job<'_>) {
                const BLOCK: usize = size_of::<Block>();
                let len = job.into.len();
                let into = job.into.as_mut_ptr();
                let head = if job.streaming { into.align_offset(align_of::<Block>()).min(len) } else { 0 };
                remainder::<Block, C>(job, 0, head);
                let mut at = head;
                while len - at >= BLOCK {
                    let mut operands = job.operands.iter().map(|operand| operand.as_ptr().wrapping_add(at));
                    let Some(first) = operands.next() else { return };
                    // SAFETY: load requires a readable block and (2): `at + BLOCK <= len` (1).
                    let mut acc = unsafe { load(first) };
                    for operand in operands {
                        // SAFETY: load requires a readable block and (2): `at + BLOCK <= len` (1).
                        C::combine(&mut acc, &unsafe { load(operand) });
                    }
                    let to = into.wrapping_add(at);
                    if job.streaming {
                        // SAFETY: stream requires a writable, aligned block and (2): `at + BLOCK <=
                        // len` (1), and `head` and BLOCK are multiples of the alignment away.
                        unsafe { stream(to, acc) };
                    } else {
                        // SAFETY: store requires a writable block and (2): `at + BLOCK <= len` (1).
                        unsafe { store(to, acc) };
                    }
                    at += BLOCK;
                }
                remainder::<Block, C>(job, at, len);
                $(if job.streaming {
                    // SAFETY: a fence, which accesses no memory. The compiler moves no access
                    // across the block, which may access all memory as far as it knows.
                    unsafe { asm!($fence, options(nostack, preserves_flags)) };
                })?
            }
        }
    };
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(in super::super) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(in super::super) use aarch64::Native;
#[cfg(target_arch = "x86_64")]
pub(in super::super) use x86_64::Native;

/// The block of the shortest reductions, which fits a register.
type Word = [u64; 1];

// SAFETY: Vectors requires plain data that is valid with any bytes, aligned to 8: a word.
unsafe impl Vectors for Word {
    const ZERO: Self = [0];
}

/// Reduces the elements from byte `at` to byte `end`, less than a block.
#[inline(always)]
fn remainder<V: Vectors, C: Combine<V> + Combine<Word>>(job: Job<'_>, at: usize, end: usize) {
    match end - at {
        0 => {}
        len if len <= size_of::<Word>() => reduce_by_copies::<Word, C>(job, at, len),
        len => reduce_by_copies::<V, C>(job, at, len),
    }
}
