//! Tests of reductions on a GPU, or on the stand-in, whose kernels are the processor's.

use std::sync::mpsc::channel;

use half::{bf16, f16};
use rdma_cuda_stand_in::Control;
use rdma_mem::{SharedSlice, Stores};

use super::*;
use crate::{GpuBuffer, testing};

/// Bytes of elements, among them NaNs, zeros of both signs and numbers that round.
pub(super) fn samples(scalar: Scalar, operands: usize, count: usize) -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let mut element = |number: usize| {
        let mut bytes = vec![0; scalar.size()];
        match number % 9 {
            0 => bytes.fill(0xff),
            1 => (),
            2 => bytes[scalar.size() - 1] = 0x80,
            _ => bytes.fill_with(&mut random),
        }
        bytes
    };
    (0..operands).map(|operand| (0..count).flat_map(|at| element(at + at / 9 * operand)).collect()).collect()
}

/// The bytes with every NaN replaced by one.
pub(super) fn canonical(scalar: Scalar, bytes: &[u8]) -> Vec<u8> {
    let is_nan = |element: &[u8]| match scalar {
        Scalar::F16 => bytemuck::pod_read_unaligned::<f16>(element).is_nan(),
        Scalar::Bf16 => bytemuck::pod_read_unaligned::<bf16>(element).is_nan(),
        Scalar::F32 => bytemuck::pod_read_unaligned::<f32>(element).is_nan(),
        Scalar::F64 => bytemuck::pod_read_unaligned::<f64>(element).is_nan(),
        _ => false,
    };
    let canonical = |element: &[u8]| if is_nan(element) { vec![0xff; element.len()] } else { element.to_vec() };
    bytes.chunks(scalar.size()).flat_map(canonical).collect()
}

/// The processor's reduction.
pub(super) fn expected(scalar: Scalar, operation: Operation, operands: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; operands[0].len()];
    let operands: Vec<SharedSlice<'_>> = operands.iter().map(|operand| operand[..].into()).collect();
    rdma_mem::reduce(scalar, operation, result[..].as_mut().into(), &operands, Stores::Cached).unwrap();
    canonical(scalar, &result)
}

/// A stream and the kernels of a GPU.
struct Bed {
    stream: Stream,
    reducer: Reducer,
}

impl Bed {
    fn new() -> Self {
        Self::of(&testing::driver().gpu(0).unwrap())
    }

    fn of(gpu: &Gpu) -> Self {
        Self { stream: Stream::new(gpu).unwrap(), reducer: Reducer::new(gpu).unwrap() }
    }

    fn slice(&self, bytes: &[u8]) -> GpuSlice<u8> {
        let slice = GpuBuffer::new(self.stream.gpu(), bytes.len()).unwrap().slice();
        self.stream.upload(&slice, bytes).unwrap();
        slice
    }

    fn slices(&self, contents: &[Vec<u8>]) -> Vec<GpuSlice<u8>> {
        contents.iter().map(|bytes| self.slice(bytes)).collect()
    }

    fn content(&self, slice: &GpuSlice<u8>) -> Vec<u8> {
        let mut bytes = vec![0; slice.len()];
        self.stream.download(slice, &mut bytes).unwrap();
        bytes
    }

    /// Sums `i32`s.
    fn sum(&self, into: &GpuSlice<u8>, operands: &[GpuSlice<u8>]) -> Result<()> {
        self.reducer.reduce(&self.stream, Scalar::I32, Operation::Sum, into, operands)
    }

    fn refusal(&self, into: &GpuSlice<u8>, operands: &[GpuSlice<u8>]) -> String {
        self.sum(into, operands).unwrap_err().to_string()
    }
}

#[test]
fn every_reduction_equals_the_processor_s() {
    let bed = Bed::new();
    for scalar in Scalar::ALL {
        let contents = samples(scalar, 3, 1001);
        let operands = bed.slices(&contents);
        let into = bed.slice(&vec![0; contents[0].len()]);
        // From the second element on, no address is that of a vector.
        let operations = Operation::ALL.into_iter().filter(|operation| operation.supports(scalar));
        for (operation, first) in operations.flat_map(|one| [(one, 0), (one, scalar.size())]) {
            let part = |slice: &GpuSlice<u8>| slice.range(first..).unwrap();
            let parts: Vec<_> = operands.iter().map(part).collect();
            bed.reducer.reduce(&bed.stream, scalar, operation, &part(&into), &parts).unwrap();
            let result = canonical(scalar, &bed.content(&part(&into)));
            let contents: Vec<_> = contents.iter().map(|bytes| bytes[first..].to_vec()).collect();
            assert!(result == expected(scalar, operation, &contents), "{operation:?} of {scalar:?} from {first}");
        }
    }
}

#[test]
fn many_operands_take_several_launches() {
    let bed = Bed::new();
    for count in [1, 2, 64, 65, 127, 128, 200] {
        let contents = samples(Scalar::Bf16, count, 33);
        let operands = bed.slices(&contents);
        let (first, scalar) = (&operands[0], Scalar::Bf16);
        bed.reducer.reduce(&bed.stream, scalar, Operation::Sum, first, &operands).unwrap();
        assert_eq!(canonical(scalar, &bed.content(first)), expected(scalar, Operation::Sum, &contents), "{count}");
    }
}

#[test]
fn the_result_may_be_an_operand_of_any_launch() {
    let bed = Bed::new();
    let scalar = Scalar::Bf16;
    for (count, result) in [(65, 64), (128, 63), (128, 127), (200, 70)] {
        let contents = samples(scalar, count, 33);
        let operands = bed.slices(&contents);
        let into = &operands[result];
        bed.reducer.reduce(&bed.stream, scalar, Operation::Sum, into, &operands).unwrap();
        let sums = canonical(scalar, &bed.content(into));
        assert_eq!(sums, expected(scalar, Operation::Sum, &contents), "operand {result} of {count}");
    }
}

#[test]
fn the_result_may_be_any_operand_and_its_neighbours_stay() {
    let bed = Bed::new();
    let whole = bed.slice(bytemuck::cast_slice(&[1, 2, 3, 4, 5, 6]));
    let part = |range: std::ops::Range<usize>| whole.range(4 * range.start..4 * range.end).unwrap();
    bed.sum(&part(2..4), &[part(0..2), part(2..4), part(4..6)]).unwrap();
    assert_eq!(bytemuck::cast_slice::<u8, i32>(&bed.content(&whole)), [1, 2, 9, 12, 5, 6]);
    bed.sum(&part(0..2), &[part(4..6)]).unwrap();
    assert_eq!(bytemuck::cast_slice::<u8, i32>(&bed.content(&whole)), [5, 6, 9, 12, 5, 6]);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let bed = Bed::new();
    let whole = bed.slice(&[0; 64]);
    let part = |range| whole.range(range).unwrap();
    assert!(bed.refusal(&whole, &[]).contains("without operands"));
    assert!(bed.refusal(&part(0..8), &[part(8..16), part(16..20)]).contains("an operand has 4 bytes"));
    assert!(bed.refusal(&part(0..8), &[part(4..12), part(16..24)]).contains("overlaps"));
    assert!(bed.refusal(&part(0..6), &[part(8..14), part(16..22)]).contains("whole number of elements"));
    assert!(bed.refusal(&part(2..10), &[part(16..24), part(24..32)]).contains("not aligned"));
    assert!(bed.sum(&part(0..0), &[part(0..0), part(8..8)]).is_ok());
}

#[test]
fn bitwise_operations_take_integers_alone() {
    let bed = Bed::new();
    let (into, operand) = (bed.slice(&[0x0f; 8]), bed.slice(&[0xf0; 8]));
    for operands in [&[operand.clone()][..], &[into.clone(), operand]] {
        let refused = bed.reducer.reduce(&bed.stream, Scalar::F32, Operation::Or, &into, operands);
        let reason = "a reduction on a GPU: the bitwise operation or is for integers, not for f32";
        assert_eq!(refused.unwrap_err().to_string(), reason);
    }
    assert_eq!(bed.content(&into), [0x0f; 8]);
}

#[test]
fn another_gpu_is_refused() {
    let gpus = testing::stand_in().gpus().unwrap();
    let (bed, other) = (Bed::of(&gpus[0]), Bed::of(&gpus[1]));
    let (here, there) = (bed.slice(&[0; 8]), other.slice(&[0; 8]));
    assert_eq!(bed.sum(&here, &[here.clone(), there.clone()]), Err(Error::OtherGpu));
    assert_eq!(bed.sum(&there, &[there.clone(), there.clone()]), Err(Error::OtherGpu));
    let reduced = bed.reducer.reduce(&other.stream, Scalar::U8, Operation::Max, &here, &[here.clone(), here.clone()]);
    assert_eq!(reduced, Err(Error::OtherGpu));
}

#[test]
fn a_reduction_keeps_what_it_uses() {
    let bed = Bed::new();
    let other = Stream::new(bed.stream.gpu()).unwrap();
    let (into, operand) = (bed.slice(&[1; 8]), bed.slice(&[2; 8]));
    let memories = [Arc::downgrade(into.memory()), Arc::downgrade(operand.memory())];
    let kernels = Arc::downgrade(&bed.reducer.0);
    let (hold, held) = channel::<()>();
    bed.stream.call_on_host(move || assert!(held.recv().is_err())).unwrap();
    bed.sum(&into, &[into.clone(), operand.clone()]).unwrap();
    let Bed { stream, reducer } = bed;
    drop((operand, reducer));
    assert!(memories.iter().all(|memory| memory.upgrade().is_some()) && kernels.upgrade().is_some());
    drop(hold);
    stream.synchronize().unwrap();
    assert!(memories[1].upgrade().is_none() && kernels.upgrade().is_none());
    let mut sums = [0; 8];
    other.download(&into, &mut sums).unwrap();
    assert_eq!(sums, [3; 8]);
}

#[test]
fn a_driver_without_a_compiler_says_so() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    Control::new().fail_next("cuModuleLoadData", 221);
    assert_eq!(Reducer::new(&gpu).unwrap_err().cuda().unwrap().code(), 221);
    Control::new().fail_next("cuModuleGetFunction", CudaError::NOT_FOUND);
    assert_eq!(Reducer::new(&gpu).unwrap_err().cuda().unwrap().call(), "cuModuleGetFunction");
    assert!(Reducer::new(&gpu).is_ok());
}
