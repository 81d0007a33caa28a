//! Element types of tensors, and the loop that adds them up.

use bytemuck::Pod;

/// A type of elements that all-reduce can sum.
pub trait Element: Pod + PartialEq + Send + Sync + std::fmt::Debug {
    /// nccl-tests' name of the type.
    const NAME: &'static str;

    /// Adds each element of `more` to its counterpart in `sums`; ignores the rest of the longer
    /// slice.
    fn accumulate(sums: &mut [Self], more: &[Self]);

    /// Converts a small whole number; sums of some thousand such values are exact.
    fn from_small(value: u16) -> Self;
}

/// Elements per iteration of the loop: four times the widest vector register of any machine.
const LANES: usize = 32;

macro_rules! element {
    ($($type:ty, $name:literal, $add:expr;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;

            #[inline]
            fn accumulate(sums: &mut [Self], more: &[Self]) {
                let add: fn(Self, Self) -> Self = $add;
                let n = sums.len().min(more.len());
                let (sums, more) = (&mut sums[..n], &more[..n]);
                let mut wide_sums = sums.chunks_exact_mut(LANES);
                let mut wide_more = more.chunks_exact(LANES);
                // Arrays need no bounds checks, so this loop becomes vector instructions.
                for (s, m) in wide_sums.by_ref().zip(wide_more.by_ref()) {
                    if let (Ok(s), Ok(m)) = (<&mut [Self; LANES]>::try_from(s), <&[Self; LANES]>::try_from(m)) {
                        for i in 0..LANES {
                            s[i] = add(s[i], m[i]);
                        }
                    }
                }
                for (s, m) in wide_sums.into_remainder().iter_mut().zip(wide_more.remainder()) {
                    *s = add(*s, *m);
                }
            }

            fn from_small(value: u16) -> Self {
                Self::from(value)
            }
        }
    )*};
}

element! {
    f32, "float", |a, b| a + b;
    f64, "double", |a, b| a + b;
    i32, "int32", Self::wrapping_add;
    u32, "uint32", Self::wrapping_add;
    i64, "int64", Self::wrapping_add;
    u64, "uint64", Self::wrapping_add;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums<T: Element>() {
        for n in [0, 1, 31, 32, 33, 1000] {
            let small = |i: usize| T::from_small(u16::try_from(i).unwrap());
            let mut acc: Vec<T> = (0..n).map(small).collect();
            let more: Vec<T> = (0..n).map(|i| small(2 * i)).collect();
            T::accumulate(&mut acc, &more);
            let expected: Vec<T> = (0..n).map(|i| small(3 * i)).collect();
            assert_eq!(acc, expected, "{} x {n}", T::NAME);
        }
    }

    #[test]
    fn every_type_sums() {
        sums::<f32>();
        sums::<f64>();
        sums::<i32>();
        sums::<u32>();
        sums::<i64>();
        sums::<u64>();
    }

    #[test]
    fn the_shorter_slice_decides() {
        let mut acc = [1.0f32; 4];
        f32::accumulate(&mut acc, &[1.0; 2]);
        assert_eq!(acc, [2.0, 2.0, 1.0, 1.0]);
    }
}
