use super::*;

/// Calls a generic test for every type.
macro_rules! for_every_type {
    ($test:ident) => {{
        $test::<f32>();
        $test::<f64>();
        $test::<f16>();
        $test::<bf16>();
        $test::<i8>();
        $test::<u8>();
        $test::<i32>();
        $test::<u32>();
        $test::<i64>();
        $test::<u64>();
    }};
}

fn reduced<T: Element>(reduction: Reduction, a: &[u16], b: &[u16]) -> Vec<T> {
    let convert = |values: &[u16]| values.iter().map(|&value| T::from_small(value)).collect::<Vec<T>>();
    let mut into = convert(a);
    T::reduce(reduction, &mut into, &convert(b));
    into
}

fn reductions<T: Element>() {
    for n in [0_u16, 1, 31, 32, 33, 300] {
        let a: Vec<u16> = (0..n).map(|i| i % 11).collect();
        let b: Vec<u16> = (0..n).map(|i| i * 7 % 11).collect();
        for &reduction in Reduction::ALL {
            let expected = |a: u16, b: u16| match reduction {
                Reduction::Sum | Reduction::Avg => a + b,
                Reduction::Prod => a * b,
                Reduction::Min => a.min(b),
                Reduction::Max => a.max(b),
            };
            let expected: Vec<T> = a.iter().zip(&b).map(|(&a, &b)| T::from_small(expected(a, b))).collect();
            assert_eq!(reduced::<T>(reduction, &a, &b), expected, "{} {reduction:?} x {n}", T::NAME);
        }
    }
}

#[test]
fn every_type_reduces() {
    for_every_type!(reductions);
}

fn quotients<T: Element>() {
    let mut sums: Vec<T> = [0, 3, 60, 126].map(T::from_small).into();
    T::divide(&mut sums, 3);
    assert_eq!(sums, [0, 1, 20, 42].map(T::from_small), "{}", T::NAME);
}

#[test]
fn every_type_divides() {
    for_every_type!(quotients);
    let mut bytes = [-128_i8, -7, 7];
    i8::divide(&mut bytes, 2);
    assert_eq!(bytes, [-64, -3, 3]);
    i8::divide(&mut bytes, 300);
    assert_eq!(bytes, [0; 3]);
}

#[test]
fn the_shorter_slice_decides() {
    let mut acc = [1.0f32; 4];
    f32::reduce(Reduction::Sum, &mut acc, &[1.0; 2]);
    assert_eq!(acc, [2.0, 2.0, 1.0, 1.0]);
    let mut acc = [f16::ONE; 4];
    f16::reduce(Reduction::Sum, &mut acc, &[f16::ONE; 2]);
    assert_eq!(acc, [2, 2, 1, 1].map(f16::from_small));
}

#[test]
fn integers_wrap_around() {
    assert_eq!(reduced::<i8>(Reduction::Sum, &[127], &[1]), [-128]);
    assert_eq!(reduced::<u8>(Reduction::Prod, &[16], &[17]), [16]);
}

#[test]
fn extremes_ignore_nan_and_keep_the_first_zero() {
    for (a, b, min, max) in [
        (f32::NAN, 1.0, 1.0, 1.0),
        (1.0, f32::NAN, 1.0, 1.0),
        (0.0, -0.0, 0.0, 0.0),
        (-0.0, 0.0, -0.0, -0.0),
        (f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY),
    ] {
        for (reduction, expected) in [(Reduction::Min, min), (Reduction::Max, max)] {
            let mut into = [a];
            f32::reduce(reduction, &mut into, &[b]);
            assert_eq!(into[0].to_bits(), expected.to_bits(), "{reduction:?} of {a} and {b}");
        }
    }
    let mut both = [f32::NAN];
    f32::reduce(Reduction::Min, &mut both, &[f32::NAN]);
    assert!(both[0].is_nan());
}

#[test]
fn small_floats_round_to_nearest_even() {
    // The sum 257 lies between 256 and 258; 259 lies between 258 and 260.
    let sums = reduced::<bf16>(Reduction::Sum, &[256, 256, 258], &[1, 3, 1]);
    assert_eq!(sums, [256, 260, 260].map(bf16::from_small));
}

fn exactness<T: Element>() {
    for value in [1, 7, u16::try_from(T::EXACT).unwrap_or(1000)] {
        let one = T::from_small(1);
        let mut sum = [T::from_small(value - 1)];
        T::reduce(Reduction::Sum, &mut sum, &[one]);
        assert_eq!(sum[0], T::from_small(value));
    }
}

#[test]
fn exact_sums_are_exact() {
    for_every_type!(exactness);
}
