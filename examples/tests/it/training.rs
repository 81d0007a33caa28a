//! Runs `training_step` on the software device, and its planner.

use std::io::BufRead;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::*;

/// A run that sends: its report, in which every value is right.
fn train(args: &[&str]) -> Value {
    let out = succeed("training_step", &[&["--json", "-n", "2", "--layer-time", "50us"], args].concat());
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(report["program"], "training_step");
    for row in rows(&report) {
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(row["seconds"].as_f64().unwrap() > 0.0 && row["planned_seconds"].as_f64().unwrap() > 0.0, "{row}");
    }
    report
}

fn rows(report: &Value) -> &[Value] {
    report["results"].as_array().unwrap()
}

fn kinds(report: &Value) -> Vec<&str> {
    rows(report).iter().map(|row| row["kind"].as_str().unwrap()).collect()
}

/// Bytes that the busiest rank sent by kind, and the planner's figure.
fn sent(report: &Value, kind: &str) -> (f64, f64) {
    let row = rows(report).iter().find(|row| row["kind"] == kind).unwrap();
    (row["sent"].as_f64().unwrap(), row["planned_sent"].as_f64().unwrap())
}

#[test]
fn every_kind_of_traffic_is_right() {
    let grid = ["--dp", "4", "--tp", "1", "--pp", "2", "--ep", "2"];
    for transport in ["shm", "verbs"] {
        let report = train(&[&grid[..], &["--layers", "2", "--bucket", "100K", "--transport", transport]].concat());
        assert_eq!(kinds(&report), ["expert", "pipeline", "data", "expert_data"]);
        // The stages send each activation once.
        let (sent, planned) = sent(&report, "pipeline");
        assert_eq!(sent, planned);
        assert!(report["step_seconds"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn the_default_grid_has_every_parallelism() {
    let report = train(&[]);
    assert_eq!(kinds(&report), ["tensor", "expert", "pipeline", "data"]);
    // Two ranks send half of an all-reduce in each of two steps, or all of a short one at once.
    let (sent, planned) = sent(&report, "data");
    assert!((sent - planned).abs() < 0.01 * planned, "{sent} {planned}");
    assert_eq!((report["grid"]["dp"].as_u64(), report["model"]["layers"].as_u64()), (Some(2), Some(4)));
}

#[test]
fn a_dense_model_has_no_experts() {
    let args = ["--dp", "1", "--tp", "3", "--pp", "1", "--ep", "1", "--experts", "0", "--hidden", "96"];
    assert_eq!(kinds(&train(&args)), ["tensor"]);
    let alone = train(&["--dp", "1", "--tp", "1", "--pp", "1", "--ep", "1"]);
    assert!(rows(&alone).is_empty());
}

#[test]
fn the_table_has_measured_and_planned_figures() {
    let args = ["--dp", "2", "--tp", "1", "--pp", "1", "--ep", "1", "-n", "1", "-c", "0"];
    let out = succeed("training_step", &args);
    for part in ["# 2 ranks: dp 2 x tp 1 x pp 1, ep 1; planner: one host with GPUs", "# a step: ", "N/A"] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    assert!(out.lines().any(|line| line.starts_with("data ") && line.contains("all_reduce")), "{out}");
    assert!(succeed("training_step", &["--help"]).contains("--dry-run"));
}

#[test]
fn the_planner_knows_large_models() {
    let model = ["--dry-run", "--parameters", "70e9", "--layers", "80", "--hidden", "8192", "--experts", "0"];
    let grid = ["--dp", "1024", "--tp", "1", "--pp", "1", "--ep", "1"];
    let out = succeed("training_step", &[&model[..], &grid].concat());
    let lines = "# Gradients of a rank: 70 billion parameters of 2 bytes are 140 GB.\n\
                 # An all-reduce moves 2 x 140 GB x 1023/1024 = 280 GB out of and into each rank.\n\
                 # In a step of 200 ms that is 1.4 TB/s a rank.\n";
    assert!(out.contains(lines), "{out}");
    let experts = ["--dry-run", "--layers", "60", "--hidden", "7168", "--experts", "256", "--top-k", "8"];
    let grid = ["--dp", "128", "--tp", "1", "--pp", "4", "--ep", "64", "--network", "rail", "--json"];
    let report: Value = serde_json::from_str(&succeed("training_step", &[&experts[..], &grid].concat())).unwrap();
    assert_eq!(kinds(&report), ["expert", "pipeline", "data", "expert_data"]);
    assert!(rows(&report).iter().all(|row| row["planned_seconds"].as_f64().unwrap() > 0.0 && row["sent"].is_null()));
}

#[test]
fn grids_that_do_not_fit_are_refused() {
    let refused = |args: &[&str], part: &str| fail("training_step", args, part);
    refused(&["--dp", "3"], "--dp 3 is no multiple of --ep 2");
    refused(&["--pp", "3"], "--layers 4 is no multiple of --pp 3; change one of them");
    refused(&["--tp", "3"], "--hidden 128 is no multiple of --tp 3");
    refused(&["--experts", "0"], "--ep 2 of a model without experts; give --ep 1, or --experts");
    refused(&["-r", "4"], "4 ranks for a grid of --dp 2 x --tp 2 x --pp 2 = 8");
    refused(&["--dp", "0"], "give 1 to 1000000");
    refused(&["--fit", "/nonexistent.json"], "cannot read /nonexistent.json");
    refused(&["-n", "1000000", "--json", "/nonexistent/x"], "cannot create /nonexistent/x");
    refused(&["--dp", "256"], "1024 ranks are too many for this machine, at most 256");
    refused(&["--hidden", "1000000"], "--dry-run for the planner's figures alone");
}

/// Starts a training of three ranks that would take very long. Returns the job, its ranks and its
/// output.
fn endless_training(transport: &str) -> (Child, Vec<u32>, impl BufRead + use<>) {
    let grid = ["--dp", "3", "--tp", "1", "--pp", "1", "--ep", "1", "--timeout", "9", "--transport", transport];
    let steps = ["-n", "1000000000", "-c", "0", "--layer-time", "50us"];
    running("training_step", &[&grid[..], &steps].concat(), "# using ", 3)
}

#[test]
fn a_killed_rank_is_named() {
    for (victim, transport) in ["verbs", "shm", "verbs"].into_iter().enumerate() {
        let (job, ranks, out) = endless_training(transport);
        // During set-up, or in the first steps.
        std::thread::sleep(Duration::from_millis(100 * victim as u64));
        send(Signal::SIGKILL, ranks[victim]);
        let killed = Instant::now();
        let said = format!("rank {victim} (process {}) was killed by signal 9", ranks[victim]);
        has_failed("training_step", &end(job), &said);
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        drop(out);
    }
}

#[test]
fn a_stopped_rank_is_named() {
    for (victim, transport) in [(1, "verbs"), (2, "shm")] {
        let (job, ranks, out) = endless_training(transport);
        std::thread::sleep(Duration::from_millis(500));
        send(Signal::SIGSTOP, ranks[victim]);
        has_failed("training_step", &end(job), &format!("rank {victim} has been silent for 3 s"));
        drop(out);
    }
}

#[test]
fn ranks_that_are_started_by_hand_train() {
    let address = free_address(41);
    let start = |rank: &str, dp: &str| {
        let grid = ["--tp", "1", "--pp", "1", "--ep", "1", "-n", "1", "--dp", dp];
        start("training_step", &[&grid[..], &["--rank", rank, "--world", "2", "--root", &address]].concat())
    };
    let ranks = [start("0", "2"), start("1", "2")].map(finish);
    assert!(ranks.iter().all(|output| output.status.success()), "{ranks:?}");
    let ranks = [start("0", "4"), start("1", "4")].map(finish);
    has_failed("training_step", &ranks[0], "2 ranks for a grid of --dp 4");
}
