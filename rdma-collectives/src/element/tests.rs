use proptest::prelude::*;

use super::*;
use crate::testing::ranks;
use crate::{Algorithm, Collective, Communicator, Executor, Pattern, Request, Transport};

/// Calls a generic function for every type.
macro_rules! for_every_type {
    ($test:ident$(, $argument:expr)?) => {{
        $test::<f32>($($argument)?);
        $test::<f64>($($argument)?);
        $test::<f16>($($argument)?);
        $test::<bf16>($($argument)?);
        $test::<i8>($($argument)?);
        $test::<u8>($($argument)?);
        $test::<i32>($($argument)?);
        $test::<u32>($($argument)?);
        $test::<i64>($($argument)?);
        $test::<u64>($($argument)?);
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
        for &reduction in Reduction::ALL.iter().filter(|reduction| reduction.supports(T::TYPE)) {
            let expected = |a: u16, b: u16| match reduction {
                Reduction::Sum | Reduction::Avg => a + b,
                Reduction::Prod => a * b,
                Reduction::Min => a.min(b),
                Reduction::Max => a.max(b),
                Reduction::And => a & b,
                Reduction::Or => a | b,
                Reduction::Xor => a ^ b,
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

#[test]
fn types_have_the_names_of_rust_and_of_nccl_tests() {
    let names: Vec<&str> = DataType::ALL.iter().map(|data_type| data_type.name()).collect();
    assert_eq!(names, ["f32", "f64", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64"]);
    for &data_type in DataType::ALL {
        assert_eq!(DataType::named(data_type.name()), Some(data_type));
        assert_eq!(DataType::named(data_type.nccl_name()), Some(data_type));
    }
    let names: Vec<&str> = DataType::ALL.iter().map(|data_type| data_type.nccl_name()).collect();
    let known = ["float", "double", "half", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "uint64"];
    assert_eq!(names, known);
}

/// Returns what a type says about itself.
struct Look;

impl ElementVisitor for Look {
    type Output = (DataType, &'static str, usize, bool);

    fn visit<T: Element>(self) -> Self::Output {
        // Half of one is none in integers alone.
        let mut half = [T::from_small(1)];
        T::divide(&mut half, 2);
        (T::TYPE, T::NAME, size_of::<T>(), half[0] == T::from_small(0))
    }
}

#[test]
fn a_type_leads_to_generic_code_of_its_own() {
    for &data_type in DataType::ALL {
        let (name, size, is_integer) = (data_type.name(), data_type.size(), data_type.is_integer());
        assert_eq!(data_type.visit(Look), (data_type, name, size, is_integer));
    }
}

#[test]
fn bitwise_reductions_are_for_integers() {
    for &reduction in Reduction::ALL {
        let is_bitwise = [Reduction::And, Reduction::Or, Reduction::Xor].contains(&reduction);
        for &data_type in DataType::ALL {
            let is_refused = is_bitwise && !data_type.is_integer();
            assert_eq!(reduction.check(data_type).is_err(), is_refused, "{reduction} of {data_type}");
        }
    }
    let error = Reduction::Or.check(f16::TYPE).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "the bitwise reduction or is for integers, not for f16");
}

#[test]
fn bits_of_floats_are_combined_outside_of_collectives() {
    let mut bits = [f32::from_bits(0x0ff0_1234); 3];
    f32::reduce(Reduction::And, &mut bits, &[f32::from_bits(0x00ff_ff00); 2]);
    assert_eq!(bits.map(f32::to_bits), [0x00f0_1200, 0x00f0_1200, 0x0ff0_1234]);
    let mut bits = [bf16::from_bits(0x0ff0); 300];
    bf16::reduce(Reduction::Xor, &mut bits, &[bf16::from_bits(0x00ff); 300]);
    assert!(bits.iter().all(|element| element.to_bits() == 0x0f0f));
}

/// Elements made of random bytes.
fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Whether two elements are equal; each NaN, which alone differs from itself, equals the others.
#[allow(clippy::eq_op, reason = "finds a NaN")]
fn is_same<T: Element>(a: &T, b: &T) -> bool {
    a == b && bytemuck::bytes_of(a) == bytemuck::bytes_of(b) || a != a && b != b
}

/// Scaling is the product with the factor.
fn scaled<T: Element>(bytes: &[u8]) {
    let elements = elements::<T>(bytes);
    for &factor in elements.iter().take(4) {
        let (mut scaled, mut products) = (elements.clone(), elements.clone());
        T::scale(&mut scaled, factor);
        T::reduce(Reduction::Prod, &mut products, &vec![factor; elements.len()]);
        let first = scaled.iter().zip(&products).position(|(scaled, product)| !is_same(scaled, product));
        assert_eq!(first, None, "{} scaled by {factor:?}: {scaled:?}, {products:?}", T::NAME);
    }
}

/// Bitwise reductions are those of the bytes.
fn bitwise<T: Element>(bytes: &[u8]) {
    let (a, b) = bytes.split_at(bytes.len() / 16 * 8);
    for reduction in [Reduction::And, Reduction::Or, Reduction::Xor] {
        let with = |(a, b): (&u8, &u8)| match reduction {
            Reduction::And => a & b,
            Reduction::Or => a | b,
            _ => a ^ b,
        };
        let mut reduced = elements::<T>(a);
        T::reduce(reduction, &mut reduced, &elements(b));
        let expected: Vec<u8> = a.iter().zip(b).map(with).collect();
        assert_eq!(bytemuck::cast_slice::<T, u8>(&reduced), expected, "{reduction} of {}", T::NAME);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn scaling_is_the_product_with_a_factor(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        for_every_type!(scaled, &bytes);
    }

    #[test]
    fn bitwise_reductions_are_those_of_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        for_every_type!(bitwise, &bytes);
    }
}

#[test]
fn scaling_wraps_and_rounds() {
    let mut integers = [100_i8, -3, 0];
    i8::scale(&mut integers, 3);
    assert_eq!(integers, [44, -9, 0]);
    // 257 lies between 256 and 258, and 771 between 768 and 772.
    let mut small = [1.0, 2.0, 3.0].map(bf16::from_f32);
    bf16::scale(&mut small, bf16::from_f32(257.0));
    assert_eq!(small, [256.0, 512.0, 768.0].map(bf16::from_f32));
    let mut third = [1.0_f64, 3.0];
    f64::scale(&mut third, 1.0 / 3.0);
    assert_eq!(third, [1.0 / 3.0, 1.0]);
}

/// Refuses bits of `f32`, and then sums, which fails if any rank has sent something.
fn refuses(comm: &mut Communicator, op: Collective, algorithm: Option<Algorithm>, executor: Option<Executor>) {
    const COUNT: usize = 10_000;
    let [input, output] = [(); 2].map(|()| comm.allocate::<f32>(COUNT).unwrap());
    input.write(0, &[2.0; COUNT]).unwrap();
    let request = |count, reduction| Request { reduction, algorithm, executor, ..Request::new(op, count) };
    for count in [1, COUNT / 2] {
        for reduction in [Reduction::And, Reduction::Or, Reduction::Xor] {
            let text = format!("the bitwise reduction {reduction} is for integers, not for f32");
            assert_eq!(comm.prepare::<f32>(request(count, reduction)).unwrap_err().to_string(), text);
            // An operation that was prepared for integers of the same size is refused.
            let of_integers = comm.prepare::<i32>(request(count, reduction)).unwrap();
            let refused = comm.perform(&of_integers, &input, &output).unwrap_err().to_string();
            assert_eq!(refused, "the operation was prepared for other tensors");
        }
        let sum = comm.prepare::<f32>(request(count, Reduction::Sum)).unwrap();
        comm.perform(&sum, &input, &output).unwrap();
        let mut sums = vec![0.0; if op == Collective::Reduce && comm.rank() > 0 { 0 } else { count }];
        output.read(0, &mut sums).unwrap();
        assert!(sums.iter().all(|sum| *sum == 4.0), "{op} by {algorithm:?}");
    }
    comm.barrier().unwrap();
}

#[test]
fn no_operation_takes_a_reduction_that_the_type_lacks() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            for algorithm in [None, Some(Algorithm::Direct), Some(Algorithm::Ring)] {
                for executor in [None, Some(Executor::Steps)] {
                    refuses(&mut comm, Collective::AllReduce, algorithm, executor);
                }
                refuses(&mut comm, Collective::ReduceScatter, algorithm, None);
            }
            refuses(&mut comm, Collective::Reduce, None, None);
        });
    }
}

/// An operation that is asked for again by name is not prepared again.
#[test]
fn a_type_of_the_same_size_has_reductions_of_its_own() {
    ranks(2, Transport::Shm, |mut comm, _| {
        let mut integers = [0x0f_i32, 0x3c];
        comm.all_reduce_in_place(&mut integers[..], Reduction::And).unwrap();
        assert_eq!(integers, [0x0f, 0x3c]);
        let refused = comm.all_reduce_in_place(&mut [1.0_f32, 2.0][..], Reduction::And).unwrap_err();
        assert_eq!(refused.to_string(), "the bitwise reduction and is for integers, not for f32");
        comm.barrier().unwrap();
    });
}

#[test]
fn every_transport_reduces_bits() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            for reduction in [Reduction::And, Reduction::Or, Reduction::Xor] {
                for count in [1, 1000, 30_000] {
                    let (pattern, mut elements) = (Pattern::<i8>::new(2, count, reduction), vec![0; count]);
                    pattern.fill(comm.rank(), 0, &mut elements);
                    comm.all_reduce_in_place(&mut elements, reduction).unwrap();
                    assert_eq!(pattern.count_wrong(0, &elements), 0, "{reduction} x {count}");
                }
            }
        });
    }
}
