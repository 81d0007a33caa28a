//! Tests of loading a driver.

use std::path::Path;

use rdma_cuda_stand_in::{Control, without};
use rdma_test_support::passes_alone;

use super::*;
use crate::{Gpu, testing};

/// Loads a library that is the stand-in, or no driver at all.
fn load_from(path: &Path) -> Result<&'static Driver, NoDriver> {
    // SAFETY: load_from requires an implementation of the driver API, or a file that does not load.
    unsafe { Driver::load_from(path) }
}

#[test]
fn the_stand_in_loads() {
    let driver = testing::stand_in();
    assert_eq!(driver.version().to_string(), "12.8");
    assert_eq!(driver.gpus().unwrap().len(), 4);
}

#[test]
fn a_missing_library_is_an_error_that_says_what_was_tried() {
    let error = load_from(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("no CUDA driver: tried /nonexistent/libcuda.so.1: "), "{text}");
    assert!(text.contains("No such file") && text.contains("RDMA_LIBCUDA_PATH"), "{text}");
}

#[test]
fn a_library_without_the_functions_is_no_driver() {
    let text = load_from(Path::new("libc.so.6")).unwrap_err().to_string();
    assert!(text.starts_with("libc.so.6 lacks cuInit, cuDriverGetVersion, "), "{text}");
    assert!(text.contains("update NVIDIA's driver"), "{text}");
}

#[test]
fn all_required_functions_that_are_missing_are_named() {
    let folder = std::env::temp_dir();
    let path = without(&["cuDeviceGetUuid", "cuCtxSynchronize"], &folder);
    let error = load_from(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    let NoDriver::MissingFunctions { functions, .. } = error else { panic!("{error}") };
    assert_eq!(functions, ["cuDeviceGetUuid", "cuCtxSynchronize"]);
}

#[test]
fn a_missing_optional_function_is_an_error_of_its_call() {
    let path = without(&["cuFlushGPUDirectRDMAWrites"], &std::env::temp_dir());
    let driver = load_from(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = driver.gpu(0).unwrap().flush_rdma_writes().unwrap_err();
    let text = "cuFlushGPUDirectRDMAWrites: CUDA_ERROR_NOT_FOUND (500): the driver lacks this function, which came \
                with CUDA 11.3";
    assert_eq!(error.to_string(), text);
}

#[test]
fn an_unknown_code_is_an_error_with_its_number() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    gpu.synchronize().unwrap();
    Control::new().fail_next("cuCtxSynchronize", 9999);
    let error = gpu.synchronize().unwrap_err();
    assert_eq!(error.to_string(), "cuCtxSynchronize: an error that this driver cannot name (9999): no description");
    assert_eq!(error.cuda().unwrap().code(), 9999);
    gpu.synchronize().unwrap();
}

#[test]
fn a_context_that_cannot_be_made_current_is_an_error_and_nothing_is_called() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    Control::new().fail_next("cuCtxPushCurrent_v2", 999);
    let error = gpu.with(|_| -> Result<(), CudaError> { panic!("called without a context") }).unwrap_err();
    assert_eq!(error.call(), "cuCtxPushCurrent_v2");
}

#[test]
fn the_result_of_a_call_survives_a_failed_pop() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    Control::new().fail_next("cuCtxPopCurrent_v2", 999);
    assert_eq!(gpu.with(|_| Ok(7)), Ok(7));
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    let name = "driver::tests::child_of_a_failing_start";
    passes_alone(&[name], &[("STAND_IN_FAIL", "cuInit=803")]);
}

#[test]
#[ignore = "run by a_driver_that_does_not_start_says_why"]
fn child_of_a_failing_start() {
    let text = load_from(&rdma_cuda_stand_in::path()).unwrap_err().to_string();
    assert!(text.contains("does not start: cuInit: ") && text.contains("restart after an update"), "{text}");
}

#[test]
fn the_environment_names_the_library_and_its_gpus() {
    let path = rdma_cuda_stand_in::path();
    let environment = [
        ("RDMA_LIBCUDA_PATH", path.to_str().unwrap()),
        ("STAND_IN_GPUS", "1"),
        ("STAND_IN_VERSION", "11040"),
        ("STAND_IN_ATTRIBUTES", "0:124=0"),
    ];
    passes_alone(&["driver::tests::child_with_an_environment"], &environment);
}

#[test]
#[ignore = "run by the_environment_names_the_library_and_its_gpus"]
fn child_with_an_environment() {
    let gpus = Gpu::all().unwrap();
    assert_eq!(gpus.len(), 1);
    assert!(!gpus[0].has(crate::DeviceAttribute::DMA_BUF_SUPPORTED));
    assert_eq!(Driver::load().unwrap().version(), DriverVersion(11_040));
    assert!(std::ptr::eq(Driver::load().unwrap(), gpus[0].driver()));
}
