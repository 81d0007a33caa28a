//! Runs `gpu_doctor` as a user does: without a driver, and on the stand-in's GPUs.

use std::process::{Command, Output, Stdio};

use rdma_test_support::program::{finish, has_failed, text};

fn doctor(environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu_doctor"));
    command.env_clear().envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

fn stand_in() -> String {
    rdma_cuda_stand_in::path().to_str().unwrap().to_owned()
}

#[test]
fn a_machine_without_a_driver_is_told_what_was_tried() {
    let output = doctor(&[("RDMA_LIBCUDA_PATH", "/nonexistent/libcuda.so.1")]);
    has_failed("gpu_doctor", &output, "no CUDA driver: tried /nonexistent/libcuda.so.1");
    let out = text(&output.stdout);
    assert!(out.starts_with("driver  none\nkernel  Linux ") && out.contains("NIC     soft0 cannot import"), "{out}");
}

#[test]
fn every_gpu_of_the_stand_in_is_shown() {
    let output = doctor(&[("RDMA_LIBCUDA_PATH", &stand_in())]);
    let out = text(&output.stdout);
    for part in [
        "driver  CUDA 12.8, ",
        "GPU 0   Stand-in Hopper (0000:1b:00.0), 8 GiB",
        "GPUDirect RDMA yes (VMM memory yes), dma-buf yes, compute capability 9.0, flush: none needed",
        "GPU 2   Stand-in GeForce (0000:65:00.0), 8 GiB",
        "soft0      unknown  direct (software device, copies by the GPU's driver)",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    // A machine with a NIC that imports dma-bufs has a direct path to the stand-in's GPUs.
    if !out.contains(" can import dma-bufs") {
        has_failed("gpu_doctor", &output, "0 of 4 GPUs have a direct path to a NIC: ");
    }
}

#[test]
fn the_environment_is_honoured_or_refused() {
    let staged = doctor(&[("RDMA_LIBCUDA_PATH", &stand_in()), ("RDMA_CUDA_PATH", "staged")]);
    assert!(text(&staged.stdout).contains("staged in host memory: as asked for"), "{}", text(&staged.stdout));
    let invalid = doctor(&[("RDMA_LIBCUDA_PATH", &stand_in()), ("RDMA_CUDA_LEVEL", "near")]);
    has_failed("gpu_doctor", &invalid, "RDMA_CUDA_LEVEL: \"near\" is no distance");
}
