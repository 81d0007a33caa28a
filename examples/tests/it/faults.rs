//! Programs whose requests meet faults of the software device: each ends with a right result, or
//! with a line per rank that says what went wrong.

use std::process::Output;

use crate::common::*;

/// Runs a program under each of some plans, a few at a time: most end after a pause.
fn under<'a>(plans: &[&'a str], name: &str, args: &[&str]) -> Vec<(&'a str, Output)> {
    let start = |plan| (plan, program(name).args(args).env("RDMA_SOFT_FAULT", plan).spawn().unwrap());
    let mut ended = Vec::new();
    for some in plans.chunks(4) {
        let running: Vec<_> = some.iter().copied().map(start).collect();
        ended.extend(running.into_iter().map(|(plan, child)| (plan, finish(child))));
    }
    ended
}

/// Plans that no request's retries are used up by.
const HARMLESS: [&str; 4] = ["delay=100us..1ms:p=0.1", "loss:nth=9", "rnr=2:every=40", "loss:recv:nth=5"];
/// Plans that end a connection or a process.
const FATAL: [&str; 11] = [
    "loss=all:nth=30",
    "loss=all:recv:nth=30",
    "operation:nth=30",
    "operation:recv:nth=30",
    "protection:nth=30",
    "response:nth=30",
    "flush:nth=30",
    "flush:recv:nth=30",
    "cq-error:nth=30",
    "cq-error:recv:nth=30",
    "die:nth=30",
];

/// Checks that a program's results are right under harmless plans.
fn endures(name: &str, args: &[&str], result: &str) {
    for (plan, output) in under(&HARMLESS, name, args) {
        let out = rdma_test_support::program::has_succeeded(plan, &output);
        assert!(out.contains(result), "{plan}: {result:?} is not in {out}");
    }
}

/// Checks that a program ends with its own lines under each plan.
fn reports(name: &str, args: &[&str], plans: &[&str]) {
    for (plan, output) in under(plans, name, args) {
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name} under {plan}: {err}");
        // Both ranks have the plan, so each may fail by itself and say so.
        let lines = err.lines().count();
        assert!((1..=2).contains(&lines) && err.lines().all(|line| line.starts_with(name)), "{plan}: {err}");
    }
}

const ACCESS: [&str; 2] = ["access:nth=30", "access:recv:nth=30"];

/// Few and short retries: 0.5 s and less.
const SHORT: [&str; 6] = ["--retry-count", "2", "--ack-timeout", "12", "--timeout", "9"];

#[test]
fn pingpong_endures_faults() {
    let args = [&SHORT[..], &["-n", "100", "-s", "4096"]].concat();
    endures("pingpong", &args, "4096");
    reports("pingpong", &args, &FATAL);
    reports("pingpong", &[&args[..], &["--op", "write"]].concat(), &ACCESS);
}

#[test]
fn pingpong_notices_a_receiver_that_is_never_ready() {
    // The program retries for ever.
    reports("pingpong", &["-n", "100", "-s", "4096", "--timeout", "4"], &["rnr=all:nth=30"]);
}

#[test]
fn all_reduce_endures_faults() {
    let args = [&SHORT[..], &["-g", "2", "--transport", "verbs", "-b", "8", "-e", "4K", "-n", "10"]].concat();
    endures("all_reduce", &args, "concluded");
    reports("all_reduce", &args, &[&FATAL[..], &ACCESS].concat());
}

#[test]
fn all_reduce_names_the_fault_and_no_flush() {
    // Each rank waits for the other's messages, whose receives are flushed by the fault.
    let waits =
        ["-g", "2", "--transport", "verbs", "--completions", "--algo", "ring", "-b", "8", "-e", "8K", "-n", "20"];
    let plans = ["operation:nth=30", "protection:nth=30", "response:nth=30", "access:nth=30"];
    for (plan, output) in under(&plans, "all_reduce", &[&SHORT[..], &waits].concat()) {
        let err = text(&output.stderr);
        assert!(err.contains("a write to rank") && !err.contains("flushed"), "{plan}: {err}");
    }
}
