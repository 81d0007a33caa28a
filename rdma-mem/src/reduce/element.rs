//! Elements, and the operations on two of them.

/// An element type: any bytes are a value.
///
/// # Safety
///
/// The type is plain data without padding, and valid whatever its bytes are.
pub(super) unsafe trait Element: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

/// An operation on elements of type `E`, as a type.
pub(super) trait Operator<E: Element>: Copy {
    fn apply(a: E, b: E) -> E;
}

/// An operation on numbers, which every element type has.
pub(super) trait Arithmetic: Copy {
    fn apply<E: Element>(a: E, b: E) -> E;
}

impl<E: Element, A: Arithmetic> Operator<E> for A {
    #[inline(always)]
    fn apply(a: E, b: E) -> E {
        <A as Arithmetic>::apply(a, b)
    }
}

macro_rules! arithmetic {
    ($($name:ident $method:ident;)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name;

        impl Arithmetic for $name {
            #[inline(always)]
            fn apply<E: Element>(a: E, b: E) -> E {
                a.$method(b)
            }
        }
    )*};
}

arithmetic! {
    Sum sum;
    Prod prod;
    Min smaller;
    Max larger;
}

macro_rules! bitwise {
    ($($name:ident $operator:tt;)*) => {$(
        /// Combines words, whatever the size of the elements in them.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name;

        impl Operator<u64> for $name {
            #[inline(always)]
            fn apply(a: u64, b: u64) -> u64 {
                a $operator b
            }
        }
    )*};
}

bitwise! {
    And &;
    Or |;
    Xor ^;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        // SAFETY: Element requires plain data that is valid with any bytes: an integer.
        unsafe impl Element for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

integers! { i8 u8 i32 u32 i64 u64 }

macro_rules! floats {
    ($($type:ty)*) => {$(
        // SAFETY: Element requires plain data that is valid with any bytes: a floating-point
        // number.
        unsafe impl Element for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self <= other || other.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self >= other || other.is_nan() { self } else { other }
            }
        }
    )*};
}

floats! { f32 f64 }

/// A number of 16 bits: 1 of sign, 5 of exponent, 10 of mantissa.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Half(pub(super) u16);

/// A number of 16 bits, the upper half of an `f32`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Brain(pub(super) u16);

const F32_SIGN: u32 = 1 << 31;
const F32_INFINITY: u32 = 0xff << 23;
/// Bits of an `f32`'s mantissa that a [`Half`] lacks.
const LOST: u32 = 13;
/// Difference of the exponents' biases, 127 - 15, in place.
const BIAS: u32 = 112 << 23;
const HALF_INFINITY: u32 = 0x1f << 10;

impl Half {
    #[inline(always)]
    pub(super) fn to_f32(self) -> f32 {
        let bits = u32::from(self.0);
        let sign = (bits & 0x8000) << 16;
        let magnitude = bits & 0x7fff;
        let moved = magnitude << LOST;
        let value = if magnitude >= HALF_INFINITY {
            moved | F32_INFINITY
        } else {
            // With an f32's bias the number is 2^112 times too small, whether it is normal or not.
            (f32::from_bits(moved) * f32::from_bits((127 + 112) << 23)).to_bits()
        };
        f32::from_bits(sign | value)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "all values have at most 16 bits")]
    pub(super) fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & !F32_SIGN;
        let half = if magnitude > F32_INFINITY {
            (magnitude >> LOST) & 0x3ff | 0x200 | HALF_INFINITY
        } else if magnitude < BIAS + (1 << 23) {
            // The units of a sum with 0.5 are those of a half that is not normal.
            (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits()
        } else {
            let odd = (magnitude >> LOST) & 1;
            ((magnitude - BIAS + (1 << (LOST - 1)) - 1 + odd) >> LOST).min(HALF_INFINITY)
        };
        Self(((bits & F32_SIGN) >> 16 | half) as u16)
    }
}

impl Brain {
    #[inline(always)]
    pub(super) fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a shift by 16 leaves 16 bits")]
    pub(super) fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let odd = (bits >> 16) & 1;
        // A NaN stays one; the sum of the other case cannot overflow then.
        let rounded = if value.is_nan() { bits | 1 << 22 } else { bits.wrapping_add(0x7fff + odd) };
        Self((rounded >> 16) as u16)
    }
}

macro_rules! halves {
    ($($type:ident)*) => {$(
        // SAFETY: Element requires plain data that is valid with any bytes: a transparent `u16`.
        unsafe impl Element for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().sum(other.to_f32()))
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().prod(other.to_f32()))
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().smaller(other.to_f32()))
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().larger(other.to_f32()))
            }
        }
    )*};
}

halves! { Half Brain }
