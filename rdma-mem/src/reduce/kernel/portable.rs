//! The kernel in Rust code, over blocks that are copied to the stack: for other processors, for
//! Miri and for thread sanitizer.

use super::super::Job;
use super::{Element, Lanes, Machine, Operator, Vectors, reduce_by_copies};

type Block = [u64; 64];

// SAFETY: Vectors requires plain data that is valid with any bytes, aligned to 8: words.
unsafe impl Vectors for Block {
    const ZERO: Self = [0; 64];
}

/// The kernels that every processor can run.
pub(in super::super) struct Portable;

impl Machine for Portable {
    fn run<E: Element, O: Operator<E>>(job: Job<'_>) {
        let len = job.into.len();
        for at in (0..len).step_by(size_of::<Block>()) {
            reduce_by_copies::<Block, Lanes<E, O>>(job, at, (len - at).min(size_of::<Block>()));
        }
    }
}
