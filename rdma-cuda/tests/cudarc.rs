//! A program of its own, because it needs a feature: exchange of slices with cudarc, on the
//! stand-in.
//!
//! cudarc finds the driver library by its name alone, so the tests run in a process whose library
//! path has the stand-in by that name.

#![cfg(feature = "cudarc")]

use std::os::unix::fs::symlink;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use rdma_cuda::interop::cudarc::{CudarcError, Lent, import};
use rdma_cuda::{
    Cause, Facts, Gpu, GpuBuffer, GpuFacts, GpuSlice, HostFacts, MemoryFacts, MemoryKind, NicFacts, PointerAttributes,
    Stream,
};
use rdma_test_support::passes_alone;

const ELEMENTS: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// Runs tests in a process that loads the stand-in, with a variable set.
fn passes_on_the_stand_in(tests: &[&str], variable: (&str, &str)) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(rdma_cuda_stand_in::path(), folder.path().join(name)).unwrap();
    }
    passes_alone(tests, &[("LD_LIBRARY_PATH", folder.path().to_str().unwrap()), variable]);
}

fn stream() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().new_stream().unwrap()
}

fn gpu(ordinal: i32) -> Gpu {
    Gpu::new(ordinal).unwrap()
}

fn download(slice: &GpuSlice<f32>) -> Vec<f32> {
    let mut elements = vec![0.0; slice.len()];
    Stream::new(slice.gpu()).unwrap().download(slice, &mut elements).unwrap();
    elements
}

#[test]
fn slices_are_exchanged_without_a_copy() {
    let tests = ["a_slice_of_cudarc_is_imported", "a_slice_is_lent_to_cudarc", "a_slice_of_another_gpu_is_refused"];
    passes_on_the_stand_in(&tests, ("STAND_IN_DELAY_US", "3000"));
}

#[test]
fn memory_of_a_pool_is_known() {
    // The attribute by which cudarc finds out that the GPU has memory pools.
    passes_on_the_stand_in(&["memory_of_a_pool_has_a_remedy"], ("STAND_IN_ATTRIBUTES", "*:115=1"));
}

#[test]
#[ignore = "run by slices_are_exchanged_without_a_copy"]
fn a_slice_of_cudarc_is_imported() {
    let slice = stream().clone_htod(&ELEMENTS).unwrap();
    let imported = import(slice, &gpu(0)).unwrap().into_inner();
    assert_eq!(download(&imported), ELEMENTS);
    let part = imported.range(1..3).unwrap();
    drop(imported);
    assert_eq!(download(&part), ELEMENTS[1..3]);
    // Frees the memory on a thread that has not used CUDA.
    std::thread::spawn(|| drop(part)).join().unwrap();
}

#[test]
#[ignore = "run by slices_are_exchanged_without_a_copy"]
fn a_slice_is_lent_to_cudarc() {
    let (stream, buffer) = (stream(), GpuBuffer::<f32>::new(&gpu(0), 4).unwrap());
    let own = Stream::new(buffer.slice().gpu()).unwrap();
    own.fill(&buffer.slice(), 0).unwrap();
    let mut lent = Lent::new(own.ready(buffer.slice()).unwrap(), &stream).unwrap();
    let read = stream.clone_dtoh(&*lent).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(read, [0.0; 4]);
    stream.memcpy_htod(&ELEMENTS[2..], &mut lent.view_mut().slice_mut(2..)).unwrap();
    assert_eq!(download(lent.finish().unwrap().get()), [0.0, 0.0, 3.0, 4.0]);

    // Work that is still queued when the slice is dropped is done before the memory is given back.
    let source = stream.clone_htod(&ELEMENTS).unwrap();
    let mut lent = Lent::new(own.ready(buffer.slice()).unwrap(), &stream).unwrap();
    stream.memcpy_dtod(&source, &mut lent.view_mut()).unwrap();
    drop(lent);
    assert_eq!(download(&buffer.slice()), ELEMENTS);
}

#[test]
#[ignore = "run by slices_are_exchanged_without_a_copy"]
fn a_slice_of_another_gpu_is_refused() {
    let slice = stream().clone_htod(&ELEMENTS).unwrap();
    let (error, slice) = import(slice, &gpu(1)).unwrap_err();
    assert!(matches!(error, CudarcError::Context { wanted: 1 }), "{error}");
    assert_eq!(slice.len(), 4);
    let other = GpuBuffer::<f32>::new(&gpu(1), 4).unwrap();
    let ready = rdma_cuda::Ready::assume(other.slice());
    let error = Lent::new(ready, &stream()).unwrap_err();
    assert!(error.to_string().contains("CudaContext::new(1)"), "{error}");
}

#[test]
#[ignore = "run by memory_of_a_pool_is_known"]
fn memory_of_a_pool_has_a_remedy() {
    let imported = import(stream().clone_htod(&ELEMENTS).unwrap(), &gpu(0)).unwrap().into_inner();
    assert_eq!(download(&imported), ELEMENTS);
    let attributes = PointerAttributes::of(&gpu(0), imported.address()).unwrap();
    let kind = Some(MemoryKind::of(attributes.as_ref()));
    assert_eq!(kind, Some(MemoryKind::Pool));
    let nic = NicFacts { name: "mlx5_0".into(), is_software: false, dma_buf: Ok(()) };
    let memory = MemoryFacts { kind, ..MemoryFacts::default() };
    let facts = Facts { host: HostFacts::default(), gpu: GpuFacts::of(&gpu(0)), nic, memory };
    assert_eq!(facts.causes(), [Cause::Pool]);
    assert!(Cause::Pool.remedy().contains("GpuBuffer"));
}
