//! Runs the programs of the collectives with tensors on the stand-in's GPUs.

use std::process::{Child, Output};

use rdma_test_support::program::has_succeeded;
use serde_json::Value;

use crate::common;
use crate::common::*;

/// Starts a program with its tensors on GPUs, on few sizes.
fn start_on_gpus(program: &str, memory: &str, args: &[&str], environment: &[(&str, &str)]) -> Child {
    let stand_in = rdma_cuda_stand_in::path();
    let mut command = common::program(program);
    command.env("RDMA_LIBCUDA_PATH", stand_in).env("STAND_IN_DELAY_US", "0");
    command.args(["--memory", memory, "-n", "2", "-w", "1", "-b", "36", "-f", "50"]).args(args);
    command.envs(environment.iter().copied()).spawn().unwrap()
}

fn run_on_gpus(program: &str, memory: &str, args: &[&str], environment: &[(&str, &str)]) -> Output {
    finish(start_on_gpus(program, memory, args, environment))
}

/// Runs a program with direct and with staged messages, and checks that all elements of all its
/// results are right. Returns the results.
fn is_right(program: &str, args: &[&str]) -> Vec<Value> {
    ["gpu", "gpu-staged"].into_iter().flat_map(|memory| is_right_with(program, memory, args)).collect()
}

fn is_right_with(program: &str, memory: &str, args: &[&str]) -> Vec<Value> {
    let output = run_on_gpus(program, memory, &[&["--json"], args].concat(), &[]);
    let name = format!("{program} --memory {memory} {args:?}");
    let report: Value = serde_json::from_str(&has_succeeded(&name, &output)).unwrap();
    assert_eq!(report["memory"], memory);
    let rows = report["results"].as_array().unwrap();
    assert!(!rows.is_empty());
    for side in rows.iter().flat_map(|row| [&row["out_of_place"], &row["in_place"]]) {
        assert!(side.is_null() || side["nwrong"] == 0, "{name}: {side}");
    }
    rows.clone()
}

#[test]
fn every_program_is_right() {
    for program in
        ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "sendrecv"]
    {
        is_right(program, &["-g", "3", "-e", "100K"]);
    }
    is_right("hypercube", &["-g", "4", "-e", "2K"]);
    is_right("all_to_all", &["-g", "3", "-e", "2K", "--uneven"]);
    is_right("barrier", &["-g", "3"]);
}

#[test]
fn every_algorithm_of_all_reduce_is_right() {
    is_right("all_reduce", &["-g", "1", "-e", "2K"]);
    for algorithm in ["auto", "ring", "direct", "two-step", "tree", "halving-doubling"] {
        let rows = is_right("all_reduce", &["-g", "4", "-e", "100K", "--chunk", "8K", "--algo", algorithm]);
        assert!(algorithm == "auto" || rows.iter().all(|row| row["algo"] == algorithm), "{rows:?}");
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    let rows = is_right("all_reduce", &["-g", "3", "-b", "2K", "-e", "2K", "-d", "all", "-o", "all"]);
    assert_eq!(rows.len(), 2 * 10 * 5);
    let rows = is_right("all_reduce", &["-g", "3", "-b", "2K", "-e", "2K", "-d", "all", "-o", "and"]);
    assert_eq!(rows.len(), 2 * 6);
}

#[test]
fn ranks_take_gpus_in_turn_and_say_the_way_of_messages() {
    let args = ["-g", "3", "-e", "36", "--out-of-place"];
    let direct = "direct (software device, copies by the GPU's driver)";
    let variable = ("RDMA_CUDA_PATH", "staged");
    for (memory, variables, way) in [
        ("gpu", &[][..], direct),
        ("gpu", &[("RDMA_CUDA_PATH", "direct")], direct),
        ("gpu", &[variable], "staged in host memory"),
        ("gpu-staged", &[], "staged in host memory"),
    ] {
        let output = run_on_gpus("all_reduce", memory, &args, &[&[("STAND_IN_GPUS", "2")], variables].concat());
        let out = has_succeeded("all_reduce", &output);
        for gpu in ["rank 0: Stand-in Hopper (0000:1b:00.0)", "rank 1: Stand-in Ampere (0000:43:00.0)"] {
            assert!(out.contains(&format!("# memory: {gpu}, {way}\n")), "{memory} {variables:?}: {out}");
        }
        assert!(out.contains("# memory: rank 2: Stand-in Hopper"), "{out}");
        assert!(out.contains("# transport: verbs") && !out.contains("warning"), "{out}");
    }
}

#[test]
fn direct_messages_need_no_host_memory() {
    // Staging needs pinned host memory. Each of the four GPUs makes received bytes visible in
    // another way, and its work runs late.
    let environment = [("STAND_IN_FAIL", "cuMemHostAlloc=2"), ("STAND_IN_DELAY_US", "300")];
    let args = ["-g", "4", "-e", "100K", "--chunk", "8K", "--algo"];
    for algorithm in ["ring", "two-step", "tree"] {
        let output = run_on_gpus("all_reduce", "gpu", &[&args[..], &[algorithm]].concat(), &environment);
        let out = has_succeeded("all_reduce", &output);
        assert!(out.contains("# memory: rank 3: Stand-in Volta (0000:9a:00.0), direct"), "{out}");
    }
    let output = run_on_gpus("all_reduce", "gpu-staged", &["-g", "2"], &environment);
    has_failed("all_reduce", &output, "cuMemHostAlloc");
}

#[test]
fn a_lack_of_gpus_or_a_wrong_path_is_one_line() {
    let without = [("RDMA_LIBCUDA_PATH", "/nonexistent/libcuda.so.1")];
    let output = run_on_gpus("all_reduce", "gpu", &["-g", "2"], &without);
    has_failed("all_reduce", &output, "no CUDA driver: tried /nonexistent/libcuda.so.1");
    has_failed("all_reduce", &output, "tensors in host memory need no GPU");
    let output = run_on_gpus("all_reduce", "gpu", &["-g", "2"], &[("RDMA_CUDA_PATH", "far")]);
    has_failed("all_reduce", &output, "RDMA_CUDA_PATH: \"far\" is no path");
    let output = run_on_gpus("all_reduce", "gpu", &["-g", "2", "--transport", "shm"], &[]);
    has_failed("all_reduce", &output, "ranks share host memory only");
}
