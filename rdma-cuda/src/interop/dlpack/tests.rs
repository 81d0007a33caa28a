//! Tests of exchanged tensors. The other library is this module.

use super::*;
use crate::{GpuBuffer, Stream, testing};

fn gpu() -> Gpu {
    testing::driver().gpu(0).unwrap()
}

/// A tensor of the numbers from 0 on.
fn numbers(count: u32) -> ManagedTensor {
    let (gpu, buffer) = (gpu(), GpuBuffer::<u32>::new(&gpu(), count as usize).unwrap());
    Stream::new(&gpu).unwrap().upload(&buffer.slice(), &(0..count).collect::<Vec<_>>()).unwrap();
    ManagedTensor::new(buffer.slice(), Scalar::U32).unwrap()
}

/// The tensor as another library changes it before it gives it away.
fn changed(tensor: ManagedTensor, change: impl FnOnce(&mut DLTensor)) -> ManagedTensor {
    let mut raw = tensor.into_raw();
    // SAFETY: as_mut requires a valid pointer that nobody else uses: the tensor has just given it
    // up.
    change(&mut unsafe { raw.as_mut() }.dl_tensor);
    // SAFETY: from_raw requires a tensor whose lists outlive it: the changes of these tests do.
    unsafe { ManagedTensor::from_raw(raw) }
}

fn content(slice: &GpuSlice<u32>) -> Vec<u32> {
    let mut content = vec![0; slice.len()];
    Stream::new(slice.gpu()).unwrap().download(slice, &mut content).unwrap();
    content
}

fn refusal(tensor: ManagedTensor) -> TensorError {
    tensor.into_slice::<u32>(&gpu()).unwrap_err().0
}

#[test]
fn a_slice_becomes_a_tensor_and_a_slice_again() {
    let tensor = numbers(100);
    assert_eq!((tensor.shape(), tensor.scalar()), (&[100][..], Some(Scalar::U32)));
    let slice = tensor.into_slice::<u32>(&gpu()).unwrap();
    assert!(content(&slice).into_iter().eq(0..100));
}

#[test]
fn the_last_owner_frees_the_memory_once() {
    let buffer = GpuBuffer::<f32>::new(&gpu(), 8).unwrap();
    let memory = Arc::downgrade(&buffer.memory());
    let tensor = ManagedTensor::new(buffer.slice(), Scalar::F32).unwrap();
    drop(buffer);
    let slice = tensor.into_slice::<f32>(&gpu()).unwrap();
    let part = slice.range(2..4).unwrap();
    drop(slice);
    assert!(memory.upgrade().is_some());
    drop(part);
    assert!(memory.upgrade().is_none());
}

#[test]
fn rows_without_gaps_are_taken_from_an_offset() {
    static SHAPE: [i64; 3] = [2, 1, 3];
    static STRIDES: [i64; 3] = [3, 77, 1];
    let tensor = changed(numbers(10), |tensor| {
        (tensor.ndim, tensor.byte_offset) = (3, 8);
        (tensor.shape, tensor.strides) = (SHAPE.as_ptr().cast_mut(), STRIDES.as_ptr().cast_mut());
    });
    assert_eq!(content(&tensor.into_slice(&gpu()).unwrap()), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_tensor_without_dimensions_is_one_element() {
    let tensor = changed(numbers(1), |tensor| tensor.ndim = 0);
    assert_eq!(content(&tensor.into_slice(&gpu()).unwrap()), [0]);
}

#[test]
fn tensors_that_are_no_slice_come_back_with_the_reason() {
    static COLUMNS: [i64; 2] = [1, 5];
    static SQUARE: [i64; 2] = [5, 5];
    static HUGE: [i64; 2] = [i64::MAX, 5];
    static NEGATIVE: [i64; 1] = [-1];
    let shaped = |shape: &'static [i64]| {
        changed(numbers(25), |tensor| {
            (tensor.ndim, tensor.shape) = (i32::try_from(shape.len()).unwrap(), shape.as_ptr().cast_mut());
        })
    };
    assert_eq!(refusal(shaped(&HUGE)), TensorError::Shape);
    assert_eq!(refusal(shaped(&NEGATIVE)), TensorError::Shape);
    let without = |change: fn(&mut DLTensor)| refusal(changed(numbers(25), change));
    assert_eq!(without(|tensor| tensor.ndim = -1), TensorError::Shape);
    assert_eq!(without(|tensor| tensor.shape = std::ptr::null_mut()), TensorError::Shape);
    let beyond_all_addresses = without(|tensor| {
        (tensor.data, tensor.byte_offset) = (std::ptr::null_mut(), u64::MAX - 4);
    });
    assert_eq!(beyond_all_addresses, TensorError::Shape);
    let columns = changed(shaped(&SQUARE), |tensor| tensor.strides = COLUMNS.as_ptr().cast_mut());
    assert_eq!(refusal(columns), TensorError::Gaps);
    let on_host = changed(numbers(4), |tensor| tensor.device.device_type = 1);
    assert!(refusal(on_host).to_string().contains("copy it there first"));
    let (error, tensor) = numbers(4).into_slice::<u64>(&gpu()).unwrap_err();
    assert_eq!(error.to_string(), "the tensor's elements have 1 times 32 bits, the slice's 8 bytes");
    assert!(tensor.into_slice::<u32>(&gpu()).is_ok());
    let buffer = GpuBuffer::<u8>::new(&gpu(), 8).unwrap();
    assert!(matches!(ManagedTensor::new(buffer.slice(), Scalar::F64), Err(TensorError::Element { .. })));
}

/// Panics when it is dropped.
#[derive(Debug)]
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("expected by the test");
    }
}

#[test]
fn a_panic_of_an_owner_does_not_reach_the_other_library() {
    rdma_test_support::passes_alone(&["interop::dlpack::tests::child_with_an_owner_that_panics"], &[]);
}

#[test]
#[ignore = "run by a_panic_of_an_owner_does_not_reach_the_other_library"]
fn child_with_an_owner_that_panics() {
    let part = testing::Part(GpuBuffer::<u8>::new(&gpu(), 8).unwrap().slice(), Panics);
    let slice = GpuSlice::<u8>::new(Arc::new(part));
    // The other library calls the deleter.
    drop(ManagedTensor::new(slice, Scalar::U8).unwrap());
}
