//! Every kernel computes the same as a fold of one element after the other.

use core::sync::atomic::{AtomicBool, Ordering};

use super::element::{Element, Half};
use super::kernel::portable::Portable;
use super::*;

/// Operands of one test.
const OPERANDS: usize = if cfg!(miri) { 3 } else { 8 };

type Kernel = fn(Scalar, Operation, Job<'_>);

const KERNELS: &[(&str, Kernel)] = &[
    ("native", run::<Native>),
    ("portable", run::<Portable>),
    #[cfg(all(target_arch = "x86_64", not(any(miri, feature = "portable"))))]
    ("sse2", run::<kernel::vectors::x86_64::Sse2>),
];

/// Random numbers of xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

/// The element types that have an operation.
fn scalars_of(operation: Operation) -> impl Iterator<Item = Scalar> {
    Scalar::ALL.into_iter().filter(move |&scalar| operation.supports(scalar))
}

/// Folds two elements, given as bytes; a NaN becomes one of a fixed payload.
fn fold(scalar: Scalar, operation: Operation, a: &[u8], b: &[u8]) -> Vec<u8> {
    fn with<E: Element>(operation: Operation, a: E, b: E) -> E {
        match operation {
            Operation::Sum => a.sum(b),
            Operation::Prod => a.prod(b),
            Operation::Min => a.smaller(b),
            Operation::Max => a.larger(b),
            Operation::And | Operation::Or | Operation::Xor => unreachable!("folded by bytes"),
        }
    }
    let by_bytes = |with: fn(u8, u8) -> u8| a.iter().zip(b).map(|(&a, &b)| with(a, b)).collect();
    match operation {
        Operation::And => return by_bytes(|a, b| a & b),
        Operation::Or => return by_bytes(|a, b| a | b),
        Operation::Xor => return by_bytes(|a, b| a ^ b),
        Operation::Sum | Operation::Prod | Operation::Min | Operation::Max => {}
    }
    macro_rules! number {
        ($type:ty) => {
            with(
                operation,
                <$type>::from_ne_bytes(a.try_into().unwrap()),
                <$type>::from_ne_bytes(b.try_into().unwrap()),
            )
            .to_ne_bytes()
            .to_vec()
        };
    }
    let bits = |bytes: &[u8]| u16::from_ne_bytes(bytes.try_into().unwrap());
    match scalar {
        Scalar::F16 => with(operation, Half(bits(a)), Half(bits(b))).0.to_ne_bytes().to_vec(),
        Scalar::Bf16 => with(operation, Brain(bits(a)), Brain(bits(b))).0.to_ne_bytes().to_vec(),
        Scalar::F32 => number!(f32),
        Scalar::F64 => number!(f64),
        Scalar::I8 => number!(i8),
        Scalar::U8 => number!(u8),
        Scalar::I32 => number!(i32),
        Scalar::U32 => number!(u32),
        Scalar::I64 => number!(i64),
        Scalar::U64 => number!(u64),
    }
}

/// The bytes with every NaN replaced by one.
fn canonical(scalar: Scalar, bytes: &[u8]) -> Vec<u8> {
    let canonical = |element: &[u8]| match scalar {
        Scalar::F16 if Half(u16::from_ne_bytes(element.try_into().unwrap())).to_f32().is_nan() => vec![0xff; 2],
        Scalar::Bf16 if Brain(u16::from_ne_bytes(element.try_into().unwrap())).to_f32().is_nan() => vec![0xff; 2],
        Scalar::F32 if f32::from_ne_bytes(element.try_into().unwrap()).is_nan() => vec![0xff; 4],
        Scalar::F64 if f64::from_ne_bytes(element.try_into().unwrap()).is_nan() => vec![0xff; 8],
        _ => element.to_vec(),
    };
    bytes.chunks(scalar.size()).flat_map(canonical).collect()
}

fn expected(scalar: Scalar, operation: Operation, operands: &[&[u8]]) -> Vec<u8> {
    let size = scalar.size();
    let element = |i: usize| {
        let at = i * size..(i + 1) * size;
        let first = operands[0][at.clone()].to_vec();
        operands[1..].iter().fold(first, |acc, operand| fold(scalar, operation, &acc, &operand[at.clone()]))
    };
    (0..operands[0].len() / size).flat_map(element).collect()
}

#[test]
fn every_kernel_equals_the_fold() {
    let mut random = Random(1);
    let sources: Vec<Vec<u8>> = (0..OPERANDS).map(|_| random.bytes(1000)).collect();
    for operation in Operation::ALL {
        for scalar in scalars_of(operation) {
            for count in (0..=100).step_by(if cfg!(miri) { 33 } else { 1 }) {
                let operands = 1 + count % OPERANDS;
                let (len, shift) = (count * scalar.size(), count % 5);
                let slices: Vec<&[u8]> =
                    sources[..operands].iter().enumerate().map(|(i, s)| &s[(i * shift)..][..len]).collect();
                let expected = canonical(scalar, &expected(scalar, operation, &slices));
                let shared: Vec<SharedSlice<'_>> = slices.iter().map(|&slice| slice.into()).collect();
                for (name, kernel) in KERNELS {
                    for streaming in [false, true] {
                        let mut memory = vec![0xaa; len + 64];
                        let aligned =
                            memory.as_ptr().align_offset(8) + shift * if streaming { scalar.size() } else { 1 };
                        let into = SharedSliceMut::from(&mut memory[aligned..aligned + len]);
                        kernel(scalar, operation, Job { into, operands: &shared, streaming });
                        let what = format!("{name} {scalar:?} {operation:?} x {count} of {operands}, {streaming}");
                        assert_eq!(canonical(scalar, &memory[aligned..aligned + len]), expected, "{what}");
                        assert!(memory[..aligned].iter().chain(&memory[aligned + len..]).all(|&b| b == 0xaa), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn long_reductions_and_streamed_copies_are_whole() {
    let len = if cfg!(miri) { 1200 } else { 100_000 };
    let mut random = Random(2);
    let (a, b) = (random.bytes(len), random.bytes(len));
    for stores in [Stores::Cached, Stores::Streaming] {
        let mut into = vec![0; len + 1];
        let operands = [a[..].into(), b[..].into()];
        reduce(Scalar::I32, Operation::Sum, (&mut into[1..]).into(), &operands, stores).unwrap();
        assert_eq!(into[1..], expected(Scalar::I32, Operation::Sum, &[&a, &b]));
        reduce(Scalar::I8, Operation::Sum, (&mut into[1..]).into(), &operands[..1], stores).unwrap();
        assert_eq!(into[1..], a);
    }
}

#[test]
fn the_result_may_be_an_operand() {
    let mut random = Random(3);
    for len in [8, 96, 800] {
        let (a, b) = (random.bytes(len), random.bytes(len));
        for stores in [Stores::Cached, Stores::Streaming] {
            let mut memory = a.clone();
            let into = SharedSliceMut::from(&mut memory[..]);
            reduce(Scalar::U64, Operation::Prod, into, &[b[..].into(), into.as_shared()], stores).unwrap();
            reduce(Scalar::U64, Operation::Prod, into, &[into.as_shared()], stores).unwrap();
            assert_eq!(memory, expected(Scalar::U64, Operation::Prod, &[&b, &a]));
        }
    }
}

#[test]
fn wrong_operands_are_refused() {
    let a = [0_u8; 12];
    let mut memory = [1_u8; 12];
    let into = SharedSliceMut::from(&mut memory[..]);
    let try_with = |scalar, into, operands: &[_]| reduce(scalar, Operation::Sum, into, operands, Stores::Cached);
    assert_eq!(try_with(Scalar::F32, into, &[]), Err(SliceError::NoOperand));
    assert_eq!(try_with(Scalar::F64, into, &[a[..].into()]), Err(SliceError::Elements(12)));
    let short = a[..8].into();
    assert_eq!(
        try_with(Scalar::F32, into, &[a[..].into(), short]),
        Err(SliceError::Length { expected: 12, actual: 8 })
    );
    let (low, high) = (into.slice(0..8).unwrap(), into.slice(4..12).unwrap());
    assert_eq!(try_with(Scalar::F32, low, &[a[..8].into(), high.as_shared()]), Err(SliceError::Overlap));
    assert_eq!(memory, [1; 12]);
}

/// Whether it is a copy or not.
#[test]
fn bitwise_operations_take_integers_alone() {
    let a = [0x0f_u8; 8];
    let operands = [a[..].into(), a[..].into()];
    for operation in [Operation::And, Operation::Or, Operation::Xor] {
        for scalar in Scalar::ALL {
            for operands in [&operands[..1], &operands[..]] {
                let mut memory = [1_u8; 8];
                let reduced = reduce(scalar, operation, (&mut memory[..]).into(), operands, Stores::Cached);
                let is_float = [Scalar::F16, Scalar::Bf16, Scalar::F32, Scalar::F64].contains(&scalar);
                assert_eq!(reduced.is_err(), is_float, "{operation:?} of {scalar:?}");
                assert_eq!(memory == [1; 8], is_float, "{operation:?} of {scalar:?}");
            }
        }
    }
    let refused = reduce(Scalar::Bf16, Operation::Xor, (&mut [0; 2][..]).into(), &operands, Stores::Cached);
    assert_eq!(refused.unwrap_err().to_string(), "the bitwise operation xor is for integers, not for bf16");
}

#[test]
fn names_are_those_of_the_values() {
    for scalar in Scalar::ALL {
        assert_eq!(scalar.name(), format!("{scalar:?}").to_lowercase());
    }
    for operation in Operation::ALL {
        assert_eq!(operation.name(), format!("{operation:?}").to_lowercase());
    }
}

#[test]
fn minima_and_maxima_ignore_a_nan_and_keep_the_first_of_equals() {
    for (a, b, min, max) in [(f32::NAN, 2.0, 2.0, 2.0), (3.0, f32::NAN, 3.0, 3.0), (-0.0, 0.0, -0.0, -0.0)] {
        for (operation, expected) in [(Operation::Min, min), (Operation::Max, max)] {
            let (a, b) = (f32::to_ne_bytes(a).repeat(40), f32::to_ne_bytes(b).repeat(40));
            let mut into = vec![0; 160];
            reduce(Scalar::F32, operation, (&mut into[..]).into(), &[a[..].into(), b[..].into()], Stores::Cached)
                .unwrap();
            assert_eq!(into, f32::to_ne_bytes(expected).repeat(40), "{operation:?}");
        }
    }
}

#[test]
fn halves_convert_exactly_and_round_to_nearest_even() {
    for bits in (0..=u16::MAX).step_by(if cfg!(miri) { 997 } else { 1 }) {
        let value = Half(bits).to_f32();
        if value.is_nan() {
            assert!(Half::from_f32(value).to_f32().is_nan() && bits & 0x7fff > 0x7c00);
            continue;
        }
        assert_eq!(Half::from_f32(value).0, bits);
        let upper = Half(bits.wrapping_add(1)).to_f32();
        // The middle of two neighbours becomes the even one.
        if upper.is_finite() && bits & 0x7fff < 0x7bff {
            assert_eq!(Half::from_f32((value + upper) / 2.0).0, bits + (bits & 1), "{bits:x}");
        }
    }
    for (value, bits) in [
        (1.0, 0x3c00),
        (65504.0, 0x7bff),
        (65519.0, 0x7bff),
        (65520.0, 0x7c00),
        (f32::MAX, 0x7c00),
        (1e-9, 0),
        (-2.0, 0xc000),
    ] {
        assert_eq!(Half::from_f32(value).0, bits, "{value}");
    }
    for (value, bits) in [(0x3f80_0000, 0x3f80), (0x7f7f_ffff, 0x7f80), (0x3f80_8000, 0x3f80), (0x3f81_8000, 0x3f82)] {
        assert_eq!(Brain::from_f32(f32::from_bits(value)).0, bits, "{value:x}");
    }
    assert!(Brain::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan());
}

/// The sum with minus zero, and the product with one, are the number itself; half of it rounds.
#[test]
fn every_half_passes_every_kernel_as_the_arithmetic_says() {
    let all: Vec<u8> = (0..=u16::MAX).step_by(if cfg!(miri) { 97 } else { 1 }).flat_map(u16::to_ne_bytes).collect();
    for (operation, other) in [(Operation::Sum, 0x8000), (Operation::Prod, 0x3c00), (Operation::Prod, 0x3800_u16)] {
        let others = other.to_ne_bytes().repeat(all.len() / 2);
        let operands = [all[..].into(), others[..].into()];
        let expected = canonical(Scalar::F16, &expected(Scalar::F16, operation, &[&all, &others]));
        for (name, kernel) in KERNELS {
            let mut memory = vec![0; all.len()];
            let into = SharedSliceMut::from(&mut memory[..]);
            kernel(Scalar::F16, operation, Job { into, operands: &operands, streaming: false });
            let found = canonical(Scalar::F16, &memory);
            assert!(found == expected, "{name} {operation:?} with {other:x}");
            if other != 0x3800 {
                assert!(found == canonical(Scalar::F16, &all), "{name} {operation:?} with {other:x}");
            }
        }
    }
}

/// A reader that races with the writer sees old and new elements only.
#[test]
fn an_operand_may_change_during_the_reduction() {
    const WORDS: usize = if cfg!(miri) { 9 } else { 1000 };
    let mut memory = vec![0_u64; WORDS];
    // SAFETY: from_raw requires bytes without plain accesses while the slice is used: `memory` is
    // not named again.
    let shared = unsafe { SharedSliceMut::from_raw(memory.as_mut_ptr().cast(), WORDS * 8) };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ones = vec![0xff_u8; WORDS * 8];
            let zeros = vec![0_u8; WORDS * 8];
            while !done.load(Ordering::Relaxed) {
                shared.copy_from(ones[..].into()).unwrap();
                shared.copy_from(zeros[..].into()).unwrap();
            }
        });
        let three = 3_u64.to_ne_bytes().repeat(WORDS);
        let mut sum = vec![0; WORDS * 8];
        for _ in 0..if cfg!(miri) { 3 } else { 2000 } {
            let operands = [three[..].into(), shared.as_shared()];
            reduce(Scalar::U8, Operation::Max, (&mut sum[..]).into(), &operands, Stores::Cached).unwrap();
            let possible = |(i, &b): (usize, &u8)| b == 0xff || b == three[i];
            assert!(sum.iter().enumerate().all(possible));
        }
        done.store(true, Ordering::Relaxed);
    });
}
