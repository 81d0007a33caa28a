//! Runs `gpu_bw` as a user does: without a driver, and on the stand-in's GPUs over `soft0`.

use std::process::{Command, Output, Stdio};

use rdma_test_support::program::{finish, has_failed, text};
use serde_json::Value;

fn gpu_bw(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu_bw"));
    command.args(["--device", "soft0", "--min", "4K", "--max", "64K", "-n", "40"]).args(arguments);
    command.env_clear().envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

fn on_stand_in(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let path = rdma_cuda_stand_in::path();
    let environment = [environment, &[("RDMA_LIBCUDA_PATH", path.to_str().unwrap())]].concat();
    gpu_bw(arguments, &environment)
}

#[test]
fn a_machine_without_a_driver_gets_one_line() {
    let output = gpu_bw(&[], &[("RDMA_LIBCUDA_PATH", "/nonexistent/libcuda.so.1")]);
    has_failed("gpu_bw", &output, "no CUDA driver: tried /nonexistent/libcuda.so.1");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_gpu_that_does_not_exist_is_an_error() {
    let output = on_stand_in(&["--gpu", "9"], &[]);
    has_failed("gpu_bw", &output, "GPU 9: ");
}

#[test]
fn each_memory_has_a_table_that_names_device_gpu_and_path() {
    let output = on_stand_in(&[], &[]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    for part in [
        "using soft0",
        "GPU Stand-in Hopper (0000:1b:00.0)",
        "RDMA_Write BW Test (direct)",
        "Path            : direct (software device, copies by the GPU's driver)",
        "Send BW Test (staged)",
        "Path            : staged in host memory, GPU 0000:1b:00.0 <-> soft0",
        "RDMA_Write BW Test (host)",
        "BW average[MiB/sec]",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    assert_eq!(out.lines().filter(|line| line.starts_with(" 65536 ")).count(), 3, "{out}");
}

#[test]
fn a_path_that_is_not_direct_is_not_measured_and_said_so() {
    let output = on_stand_in(&["--json", "--memory", "direct,staged"], &[("RDMA_CUDA_PATH", "staged")]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let [direct, staged] = report["results"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert!(direct["not_measured"].as_str().unwrap().contains("as asked for"), "{report}");
    let sizes: Vec<_> = staged["bandwidth"].as_array().unwrap().iter().map(|row| row["MsgSize"].as_u64()).collect();
    assert_eq!(sizes, [Some(4096), Some(16384), Some(65536)]);
}
