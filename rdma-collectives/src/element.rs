//! Element types of tensors, and the loops that reduce them.
//!
//! Integers wrap around. The 16-bit floating-point types are computed in `f32` and rounded to
//! nearest even after each reduction. `min` and `max` ignore a NaN unless both operands are NaN,
//! and prefer the first operand of two equal ones, which matters for the sign of zero. A reduction
//! is therefore a function of the order of its operands alone.

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rdma_mem::{Operation, Scalar};

use crate::named::named;

named! {
    /// A reduction.
    pub enum Reduction {
        /// The sum.
        Sum = "sum",
        /// The product.
        Prod = "prod",
        /// The largest value.
        Max = "max",
        /// The smallest value.
        Min = "min",
        /// The sum, divided by the number of ranks. The quotients of integers are truncated.
        Avg = "avg",
    }
}

impl Reduction {
    /// The reduction of two elements; an average is a sum until it is [finished](Self::finish).
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::Sum | Self::Avg => Operation::Sum,
            Self::Prod => Operation::Prod,
            Self::Min => Operation::Min,
            Self::Max => Operation::Max,
        }
    }

    /// Completes the reduction of all ranks' elements.
    #[inline]
    pub(crate) fn finish<T: Element>(self, elements: &mut [T], ranks: usize) {
        if self == Self::Avg {
            T::divide(elements, ranks);
        }
    }
}

/// A type of elements that collectives can move and reduce.
pub trait Element: Pod + PartialEq + Send + Sync + std::fmt::Debug {
    /// nccl-tests' name of the type.
    const NAME: &'static str;

    /// The type, for reductions in shared memory.
    const SCALAR: Scalar;

    /// Every whole number from 0 to this one has an exact representation, and so have all sums
    /// up to it. The sums of an integer type are always exact, modulo its range.
    const EXACT: u32;

    /// Reduces each element of `into` with its counterpart in `more`, which is the second operand;
    /// ignores the rest of the longer slice. [`Reduction::Avg`] sums.
    fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]);

    /// Divides every element, which makes an average of a sum. Quotients of integers are truncated.
    fn divide(elements: &mut [Self], divisor: usize);

    /// Converts a small whole number, modulo the range of an integer type.
    fn from_small(value: u16) -> Self;
}

/// Elements per iteration of a loop: four times the widest vector register of any machine.
const LANES: usize = 32;

/// Combines each element of `into` with its counterpart in `more`.
#[inline(always)]
fn combine<T: Pod>(into: &mut [T], more: &[T], with: impl Fn(T, T) -> T) {
    let n = into.len().min(more.len());
    let (into, more) = (&mut into[..n], &more[..n]);
    let mut wide_into = into.chunks_exact_mut(LANES);
    let mut wide_more = more.chunks_exact(LANES);
    // Arrays need no bounds checks, so this loop becomes vector instructions.
    for (a, b) in wide_into.by_ref().zip(wide_more.by_ref()) {
        if let (Ok(a), Ok(b)) = (<&mut [T; LANES]>::try_from(a), <&[T; LANES]>::try_from(b)) {
            for i in 0..LANES {
                a[i] = with(a[i], b[i]);
            }
        }
    }
    for (a, b) in wide_into.into_remainder().iter_mut().zip(wide_more.remainder()) {
        *a = with(*a, *b);
    }
}

macro_rules! floats {
    ($($type:ty, $scalar:ident, $name:literal;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;
            const SCALAR: Scalar = Scalar::$scalar;
            const EXACT: u32 = if <$type>::MANTISSA_DIGITS > 31 { u32::MAX } else { 1 << <$type>::MANTISSA_DIGITS };

            #[inline]
            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                match reduction {
                    Reduction::Sum | Reduction::Avg => combine(into, more, |a, b| a + b),
                    Reduction::Prod => combine(into, more, |a, b| a * b),
                    Reduction::Min => combine(into, more, |a, b| if a <= b || b.is_nan() { a } else { b }),
                    Reduction::Max => combine(into, more, |a, b| if a >= b || b.is_nan() { a } else { b }),
                }
            }

            fn divide(elements: &mut [Self], divisor: usize) {
                elements.iter_mut().for_each(|element| *element /= divisor as Self);
            }

            fn from_small(value: u16) -> Self {
                Self::from(value)
            }
        }
    )*};
}

floats! {
    f32, F32, "float";
    f64, F64, "double";
}

macro_rules! integers {
    ($($type:ty, $wide:ty, $scalar:ident, $name:literal;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;
            const SCALAR: Scalar = Scalar::$scalar;
            const EXACT: u32 = u32::MAX;

            #[inline]
            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                match reduction {
                    Reduction::Sum | Reduction::Avg => combine(into, more, Self::wrapping_add),
                    Reduction::Prod => combine(into, more, Self::wrapping_mul),
                    Reduction::Min => combine(into, more, Self::min),
                    Reduction::Max => combine(into, more, Self::max),
                }
            }

            fn divide(elements: &mut [Self], divisor: usize) {
                let divisor = divisor as $wide;
                for element in elements {
                    // A quotient by one or more is no larger than its dividend.
                    *element = Self::try_from(<$wide>::from(*element) / divisor).unwrap_or(*element);
                }
            }

            #[allow(clippy::cast_possible_truncation, reason = "the value is converted modulo the range")]
            fn from_small(value: u16) -> Self {
                value as Self
            }
        }
    )*};
}

integers! {
    i8, i64, I8, "int8";
    u8, u64, U8, "uint8";
    i32, i64, I32, "int32";
    u32, u64, U32, "uint32";
    i64, i64, I64, "int64";
    u64, u64, U64, "uint64";
}

/// Elements of a 16-bit type that are converted at a time.
const CONVERTED: usize = 256;

macro_rules! halves {
    ($($type:ty, $scalar:ident, $name:literal;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;
            const SCALAR: Scalar = Scalar::$scalar;
            const EXACT: u32 = 1 << <$type>::MANTISSA_DIGITS;

            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                let (mut a, mut b) = ([f32::zeroed(); CONVERTED], [f32::zeroed(); CONVERTED]);
                for (into, more) in into.chunks_mut(CONVERTED).zip(more.chunks(CONVERTED)) {
                    let n = into.len().min(more.len());
                    let (a, b) = (&mut a[..n], &mut b[..n]);
                    into[..n].convert_to_f32_slice(a);
                    more[..n].convert_to_f32_slice(b);
                    f32::reduce(reduction, a, b);
                    into[..n].convert_from_f32_slice(a);
                }
            }

            fn divide(elements: &mut [Self], divisor: usize) {
                let divisor = divisor as f32;
                elements.iter_mut().for_each(|element| *element = Self::from_f32(element.to_f32() / divisor));
            }

            fn from_small(value: u16) -> Self {
                Self::from_f32(value.into())
            }
        }
    )*};
}

halves! {
    f16, F16, "half";
    bf16, Bf16, "bfloat16";
}

#[cfg(test)]
mod tests;
