//! Runs the programs of the collectives with tensors on the stand-in's GPUs.

mod common;

use std::process::{Child, Output};

use common::*;
use rdma_test_support::program::has_succeeded;
use serde_json::Value;

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

/// Runs a program, and checks that all elements of all its results are right.
fn is_right(program: &str, args: &[&str]) -> Vec<Value> {
    let output = run_on_gpus(program, "gpu-staged", &[&["--json"], args].concat(), &[]);
    let name = format!("{program} {args:?}");
    let report: Value = serde_json::from_str(&has_succeeded(&name, &output)).unwrap();
    assert_eq!(report["memory"], "gpu-staged");
    let rows = report["results"].as_array().unwrap();
    assert!(!rows.is_empty());
    for side in rows.iter().flat_map(|row| [&row["out_of_place"], &row["in_place"]]) {
        assert!(side.is_null() || side["nwrong"] == 0, "{name}: {side}");
    }
    rows.clone()
}

#[test]
fn every_program_is_right() {
    for program in ["all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"]
    {
        is_right(program, &["-r", "3", "-e", "100K"]);
    }
    is_right("hypercube", &["-r", "4", "-e", "2K"]);
    is_right("alltoall", &["-r", "3", "-e", "2K", "--uneven"]);
    is_right("barrier", &["-r", "3"]);
}

#[test]
fn every_algorithm_of_all_reduce_is_right() {
    is_right("all_reduce", &["-r", "1", "-e", "2K"]);
    for algorithm in ["auto", "ring", "direct", "two-step", "tree", "halving-doubling"] {
        let rows = is_right("all_reduce", &["-r", "4", "-e", "100K", "--chunk", "8K", "--algo", algorithm]);
        assert!(algorithm == "auto" || rows.iter().all(|row| row["algo"] == algorithm), "{rows:?}");
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    let rows = is_right("all_reduce", &["-r", "3", "-b", "2K", "-e", "2K", "-d", "all", "-o", "all"]);
    assert_eq!(rows.len(), 10 * 5);
}

#[test]
fn ranks_take_gpus_in_turn_and_a_fallback_is_told() {
    let args = ["-r", "3", "-e", "36", "--out-of-place"];
    let asked = run_on_gpus("all_reduce", "gpu-staged", &args, &[("STAND_IN_GPUS", "2")]);
    let out = has_succeeded("all_reduce", &asked);
    for part in ["rank 0: Stand-in Hopper (0000:1b:00.0)", "rank 1: Stand-in Ampere", "rank 2: Stand-in Hopper"] {
        assert!(out.contains(&format!("# memory: {part}")), "{out}");
    }
    assert!(out.contains("# transport: verbs") && !out.contains("warning"), "{out}");
    let preferred = has_succeeded("all_reduce", &run_on_gpus("all_reduce", "gpu", &args, &[]));
    assert!(preferred.contains("# warning: messages are staged in host memory: "), "{preferred}");
}

#[test]
fn a_lack_of_gpus_or_of_a_path_is_one_line() {
    let without = [("RDMA_LIBCUDA_PATH", "/nonexistent/libcuda.so.1")];
    let output = run_on_gpus("all_reduce", "gpu", &["-r", "2"], &without);
    has_failed("all_reduce", &output, "no CUDA driver: tried /nonexistent/libcuda.so.1");
    has_failed("all_reduce", &output, "--memory host needs no GPU");
    let output = run_on_gpus("all_reduce", "gpu", &["-r", "2"], &[("RDMA_CUDA_PATH", "direct")]);
    has_failed("all_reduce", &output, "no direct path, which RDMA_CUDA_PATH asks for");
    let output = run_on_gpus("all_reduce", "gpu", &["-r", "2", "--transport", "shm"], &[]);
    has_failed("all_reduce", &output, "ranks share host memory only");
}
