//! Element types of tensors, and the loops that reduce them.
//!
//! Integers wrap around. The 16-bit floating-point types are computed in `f32` and rounded to
//! nearest even after each reduction. `min` and `max` ignore a NaN unless both operands are NaN,
//! and prefer the first operand of two equal ones, which matters for the sign of zero. A reduction
//! is therefore a function of the order of its operands alone.
//!
//! Integers alone have the bitwise reductions, which [`Reduction::check`] tells at run time: a
//! program may learn both the reduction and the [`DataType`] from its options.

mod data_type;

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rdma_mem::{Operation, Scalar};

use crate::Error;
use crate::named::named;
pub use data_type::DataType;
pub(crate) use data_type::by_type;

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
        /// The bitwise and, of integers alone.
        And = "and",
        /// The bitwise or, of integers alone.
        Or = "or",
        /// The bitwise exclusive or, of integers alone.
        Xor = "xor",
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
            Self::And => Operation::And,
            Self::Or => Operation::Or,
            Self::Xor => Operation::Xor,
        }
    }

    /// Whether elements of a type have the reduction: integers have all, floating-point numbers all
    /// but the bitwise ones, which are [`And`](Self::And), [`Or`](Self::Or) and [`Xor`](Self::Xor).
    #[must_use]
    pub fn supports(self, data_type: DataType) -> bool {
        self.operation().supports(data_type.scalar())
    }

    /// Refuses elements that do not have the reduction, as every collective does before it sends
    /// anything.
    ///
    /// # Errors
    /// If the type [does not have](Self::supports) the reduction; the error names both.
    pub fn check(self, data_type: DataType) -> Result<(), Error> {
        if self.supports(data_type) {
            return Ok(());
        }
        Err(Error::invalid(format!("the bitwise reduction {self} is for integers, not for {data_type}")))
    }

    /// Completes the reduction of all ranks' elements.
    #[inline]
    pub(crate) fn finish<T: Element>(self, elements: &mut [T], ranks: usize) {
        if self == Self::Avg {
            T::divide(elements, ranks);
        }
    }
}

/// A type of elements that collectives can move and reduce: one of [`DataType`].
pub trait Element: Pod + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed {
    /// The type as a value.
    const TYPE: DataType;

    /// The name of the type.
    const NAME: &'static str = Self::TYPE.name();

    /// The type, for reductions in shared memory.
    const SCALAR: Scalar = Self::TYPE.scalar();

    /// Every whole number from 0 to this one has an exact representation, and so have all sums
    /// up to it. The sums of an integer type are always exact, modulo its range.
    const EXACT: u32;

    /// Reduces each element of `into` with its counterpart in `more`, which is the second operand;
    /// ignores the rest of the longer slice. [`Reduction::Avg`] sums. The bitwise reductions, which
    /// collectives [refuse](Reduction::check) for floating-point numbers, combine their bits here.
    fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]);

    /// Divides every element, which makes an average of a sum. Quotients of integers are truncated.
    fn divide(elements: &mut [Self], divisor: usize);

    /// Multiplies every element by a factor, with the wrapping and the rounding of
    /// [`Reduction::Prod`]. A sum of elements that each rank has scaled is NCCL's `PreMulSum`.
    fn scale(elements: &mut [Self], factor: Self);

    /// Converts a small whole number, modulo the range of an integer type.
    fn from_small(value: u16) -> Self;
}

mod sealed {
    /// Keeps other types from becoming elements: [`DataType`](super::DataType) names all.
    pub trait Sealed {}
}

/// Code that is generic over the type of elements, for [`DataType::visit`].
pub trait ElementVisitor {
    /// The result of the code.
    type Output;

    /// Runs the code for a type.
    fn visit<T: Element>(self) -> Self::Output;
}

impl DataType {
    /// Runs generic code for this type.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_collectives::{DataType, Element, ElementVisitor, Reduction};
    ///
    /// struct OneMoreThan(u16);
    ///
    /// impl ElementVisitor for OneMoreThan {
    ///     type Output = String;
    ///
    ///     fn visit<T: Element>(self) -> String {
    ///         let mut sum = [T::from_small(self.0)];
    ///         T::reduce(Reduction::Sum, &mut sum, &[T::from_small(1)]);
    ///         format!("{:?}", sum[0])
    ///     }
    /// }
    ///
    /// let data_type = DataType::named("i8").expect("a name of a type");
    /// assert_eq!(data_type.visit(OneMoreThan(127)), "-128");
    /// ```
    pub fn visit<V: ElementVisitor>(self, visitor: V) -> V::Output {
        by_type!(self, T => visitor.visit::<T>())
    }
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

/// Reduces the bits of elements of any type.
fn reduce_bits<T: Pod>(reduction: Reduction, into: &mut [T], more: &[T]) {
    u8::reduce(reduction, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(more));
}

macro_rules! floats {
    ($($type:ty, $variant:ident;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: DataType = DataType::$variant;
            const EXACT: u32 = if <$type>::MANTISSA_DIGITS > 31 { u32::MAX } else { 1 << <$type>::MANTISSA_DIGITS };

            #[inline]
            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                match reduction {
                    Reduction::Sum | Reduction::Avg => combine(into, more, |a, b| a + b),
                    Reduction::Prod => combine(into, more, |a, b| a * b),
                    Reduction::Min => combine(into, more, |a, b| if a <= b || b.is_nan() { a } else { b }),
                    Reduction::Max => combine(into, more, |a, b| if a >= b || b.is_nan() { a } else { b }),
                    Reduction::And | Reduction::Or | Reduction::Xor => reduce_bits(reduction, into, more),
                }
            }

            fn divide(elements: &mut [Self], divisor: usize) {
                elements.iter_mut().for_each(|element| *element /= divisor as Self);
            }

            fn scale(elements: &mut [Self], factor: Self) {
                elements.iter_mut().for_each(|element| *element *= factor);
            }

            fn from_small(value: u16) -> Self {
                Self::from(value)
            }
        }
    )*};
}

floats! {
    f32, F32;
    f64, F64;
}

macro_rules! integers {
    ($($type:ty, $wide:ty, $variant:ident;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: DataType = DataType::$variant;
            const EXACT: u32 = u32::MAX;

            #[inline]
            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                match reduction {
                    Reduction::Sum | Reduction::Avg => combine(into, more, Self::wrapping_add),
                    Reduction::Prod => combine(into, more, Self::wrapping_mul),
                    Reduction::Min => combine(into, more, Self::min),
                    Reduction::Max => combine(into, more, Self::max),
                    Reduction::And => combine(into, more, |a, b| a & b),
                    Reduction::Or => combine(into, more, |a, b| a | b),
                    Reduction::Xor => combine(into, more, |a, b| a ^ b),
                }
            }

            fn divide(elements: &mut [Self], divisor: usize) {
                let divisor = divisor as $wide;
                for element in elements {
                    // A quotient by one or more is no larger than its dividend.
                    *element = Self::try_from(<$wide>::from(*element) / divisor).unwrap_or(*element);
                }
            }

            fn scale(elements: &mut [Self], factor: Self) {
                elements.iter_mut().for_each(|element| *element = element.wrapping_mul(factor));
            }

            #[allow(clippy::cast_possible_truncation, reason = "the value is converted modulo the range")]
            fn from_small(value: u16) -> Self {
                value as Self
            }
        }
    )*};
}

integers! {
    i8, i64, I8;
    u8, u64, U8;
    i32, i64, I32;
    u32, u64, U32;
    i64, i64, I64;
    u64, u64, U64;
}

/// Elements of a 16-bit type that are converted at a time.
const CONVERTED: usize = 256;

macro_rules! halves {
    ($($type:ty, $variant:ident;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: DataType = DataType::$variant;
            const EXACT: u32 = 1 << <$type>::MANTISSA_DIGITS;

            fn reduce(reduction: Reduction, into: &mut [Self], more: &[Self]) {
                if let Reduction::And | Reduction::Or | Reduction::Xor = reduction {
                    return reduce_bits(reduction, into, more);
                }
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

            fn scale(elements: &mut [Self], factor: Self) {
                let mut wide = [f32::zeroed(); CONVERTED];
                for elements in elements.chunks_mut(CONVERTED) {
                    let wide = &mut wide[..elements.len()];
                    elements.convert_to_f32_slice(wide);
                    f32::scale(wide, factor.to_f32());
                    elements.convert_from_f32_slice(wide);
                }
            }

            fn from_small(value: u16) -> Self {
                Self::from_f32(value.into())
            }
        }
    )*};
}

halves! {
    f16, F16;
    bf16, Bf16;
}

#[cfg(test)]
mod tests;
