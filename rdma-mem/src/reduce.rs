//! Reductions of several ranges of shared memory into one, in one pass.
//!
//! [`reduce()`] reads each operand once, by vector registers, and writes the result once. Loads and
//! stores are assembly, under the five rules of [`copy()`](crate::copy()): each byte is as if
//! loaded by a relaxed atomic load and stored by a relaxed atomic store. The arithmetic between
//! them is ordinary Rust on values in registers, which the compiler turns into vector instructions;
//! one loop is compiled for each instruction set, and the processor's is chosen at run time.
//!
//! The result is that of reducing the first operand with the second, the result with the third, and
//! so on, on every processor and for every position of an element:
//!
//! * integers wrap around, and they alone have the bitwise operations;
//! * the 16-bit floating-point types are computed in `f32` and rounded to nearest even after each
//!   operand;
//! * `Min` and `Max` return the first of two equal operands, and ignore a NaN unless both are NaN;
//! * a NaN's sign and payload are not specified.
//!
//! # Safety
//!
//! A kernel's conditions, which the blocks in this module cite:
//!
//! 1. `into` and every operand are slices of one length, and so valid for it; each operand is
//!    disjoint from `into` or at the same place.
//! 2. The processor has the kernel's instructions.

mod element;
mod kernel;

use crate::slice::{Aliasing, SharedSlice, SharedSliceMut, SliceError};
use element::{And, Arithmetic, Brain, Max, Min, Operator, Or, Prod, Sum, Xor};
use kernel::{Machine, Native};

/// The type of the elements of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of the types")]
pub enum Scalar {
    F16,
    /// The upper half of an `f32`.
    Bf16,
    F32,
    F64,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
}

impl Scalar {
    /// All types.
    pub const ALL: [Self; 10] =
        [Self::F16, Self::Bf16, Self::F32, Self::F64, Self::I8, Self::U8, Self::I32, Self::U32, Self::I64, Self::U64];

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether the type is one of integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        match self {
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => false,
            Self::I8 | Self::U8 | Self::I32 | Self::U32 | Self::I64 | Self::U64 => true,
        }
    }

    /// The name that Rust, or the crate `half`, gives the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }
}

/// A reduction of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of the operations")]
pub enum Operation {
    Sum,
    Prod,
    Min,
    Max,
    /// Of bits, for integers alone.
    And,
    /// Of bits, for integers alone.
    Or,
    /// Of bits, for integers alone.
    Xor,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 7] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::And, Self::Or, Self::Xor];

    /// Whether elements of a type have the operation: integers have all, floating-point numbers
    /// all but the bitwise ones.
    #[must_use]
    pub const fn supports(self, scalar: Scalar) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max => true,
            Self::And | Self::Or | Self::Xor => scalar.is_integer(),
        }
    }

    /// The name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }
}

/// The way in which a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stores {
    /// Into the caches: for results that are read soon.
    Cached,
    /// Past the caches: for results that are larger than the last-level cache. Ordinary stores read
    /// each line of the result before they overwrite it; these do not.
    Streaming,
}

/// Stores the reduction of `operands` in `into`. One operand is a copy.
///
/// Bytes that others change meanwhile are old or new. `into` may be one of the operands. Elements
/// need no alignment.
///
/// # Errors
///
/// `NoOperand`; `Length` or `Overlap` if an operand has another length than `into`, or overlaps it
/// in part; `Elements` if the length is not that of whole elements; `Bitwise` if the elements are
/// floating-point numbers, which [have not](Operation::supports) the operation. Nothing is written
/// then.
///
/// # Examples
///
/// ```
/// use rdma_mem::{Operation, Scalar, Stores, reduce};
///
/// let (a, b) = (1.5_f32.to_ne_bytes(), 2_f32.to_ne_bytes());
/// let mut sum = [0; 4];
/// let operands = [a[..].into(), b[..].into()];
/// reduce(Scalar::F32, Operation::Sum, sum[..].as_mut().into(), &operands, Stores::Cached)?;
/// assert_eq!(f32::from_ne_bytes(sum), 3.5);
/// # Ok::<(), rdma_mem::SliceError>(())
/// ```
pub fn reduce(
    scalar: Scalar,
    operation: Operation,
    into: SharedSliceMut<'_>,
    operands: &[SharedSlice<'_>],
    stores: Stores,
) -> Result<(), SliceError> {
    if !operation.supports(scalar) {
        return Err(SliceError::Bitwise { operation: operation.name(), scalar: scalar.name() });
    }
    let (first, more) = operands.split_first().ok_or(SliceError::NoOperand)?;
    if into.len() % scalar.size() != 0 {
        return Err(SliceError::Elements(into.len()));
    }
    let place = into.check_operand(*first)?;
    for operand in more {
        into.check_operand(*operand)?;
    }
    if more.is_empty() && (place == Aliasing::Same || stores == Stores::Cached) {
        return into.copy_from(*first);
    }
    // The vectors of an aligned result hold whole elements only if the elements are aligned too.
    let streaming = stores == Stores::Streaming && into.as_mut_ptr().addr() % scalar.size() == 0;
    let job = Job { into, operands, streaming };
    run::<Native>(scalar, operation, job);
    Ok(())
}

/// Operands that meet condition 1 of a kernel.
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    into: SharedSliceMut<'a>,
    operands: &'a [SharedSlice<'a>],
    #[allow(dead_code, reason = "the portable kernel does not read it: Rust has no stores past the caches")]
    streaming: bool,
}

/// Runs a kernel of `M`.
fn run<M: Machine>(scalar: Scalar, operation: Operation, job: Job<'_>) {
    match operation {
        Operation::Sum => run_arithmetic::<M, Sum>(scalar, job),
        Operation::Prod => run_arithmetic::<M, Prod>(scalar, job),
        Operation::Min => run_arithmetic::<M, Min>(scalar, job),
        Operation::Max => run_arithmetic::<M, Max>(scalar, job),
        Operation::And => run_bitwise::<M, And>(job),
        Operation::Or => run_bitwise::<M, Or>(job),
        Operation::Xor => run_bitwise::<M, Xor>(job),
    }
}

fn run_arithmetic<M: Machine, A: Arithmetic>(scalar: Scalar, job: Job<'_>) {
    match scalar {
        Scalar::F16 => M::run_f16::<A>(job),
        Scalar::Bf16 => M::run::<Brain, A>(job),
        Scalar::F32 => M::run::<f32, A>(job),
        Scalar::F64 => M::run::<f64, A>(job),
        Scalar::I8 => M::run::<i8, A>(job),
        Scalar::U8 => M::run::<u8, A>(job),
        Scalar::I32 => M::run::<i32, A>(job),
        Scalar::U32 => M::run::<u32, A>(job),
        Scalar::I64 => M::run::<i64, A>(job),
        Scalar::U64 => M::run::<u64, A>(job),
    }
}

/// Reduces the words of integers of any type.
#[inline(never)] // Else its kernel grows the stack frame of every other operation.
fn run_bitwise<M: Machine, O: Operator<u64>>(job: Job<'_>) {
    M::run::<u64, O>(job);
}

#[cfg(test)]
mod tests;
