//! Runs the collectives that aggregators reduce and multicast, on the software device.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::*;

/// The rows of a program's report; every result is right.
fn rows(program: &str, args: &[&str]) -> Vec<Value> {
    let few = ["--json", "-n", "2", "-w", "1", "-b", "36", "-e", "300K", "-f", "90", "--chunk", "8K"];
    let out = succeed(program, &[&few, args].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["results"].as_array().unwrap().clone();
    for side in rows.iter().flat_map(|row| ["out_of_place", "in_place"].map(|side| &row[side])) {
        assert!(side.is_null() || side["nwrong"] == 0, "{program} {args:?}: {side}");
    }
    rows
}

fn in_network(program: &str, args: &[&str]) -> Vec<Value> {
    let rows = rows(program, &[&["--algo", "in-network"], args].concat());
    assert!(rows.iter().all(|row| row["algo"] == "in-network"));
    rows
}

#[test]
fn every_collective_is_right() {
    for program in ["all_reduce", "broadcast", "reduce", "barrier"] {
        for transport in ["shm", "verbs"] {
            in_network(program, &["-g", "4", "--transport", transport]);
            in_network(program, &["-g", "5", "--transport", transport, "--aggregators", "3", "--radix", "2"]);
        }
    }
    for program in ["broadcast", "reduce"] {
        in_network(program, &["-g", "3", "--root-rank", "all", "--aggregators", "3"]);
    }
    // More aggregators than ranks.
    in_network("all_reduce", &["-g", "1", "--aggregators", "2", "--radix", "1"]);
}

#[test]
fn every_type_and_reduction_is_right() {
    let rows = in_network("all_reduce", &["-g", "3", "-e", "36", "-d", "all", "-o", "all", "--transport", "verbs"]);
    assert!(rows.len() >= 10 * 5);
}

/// In a ring each rank sends `2 N (n-1)/n` bytes and receives as many.
#[test]
fn a_rank_sends_and_receives_each_byte_once() {
    let traffic = |algo: &str| {
        let args = ["-g", "4", "-b", "256K", "-e", "256K", "--transport", "verbs", "--algo", algo];
        let rows = rows("all_reduce", &args);
        ["sent", "received"].map(|key| rows[0]["out_of_place"][key].as_u64().unwrap_or_default())
    };
    assert_eq!(traffic("in-network"), [256 << 10; 2]);
    assert_eq!(traffic("two-step"), [2 * 3 * (256 << 10) / 4; 2]);
    let args = ["-g", "2", "-b", "64", "-e", "64", "-n", "2", "--algo", "in-network"];
    let table = succeed("all_reduce", &args);
    assert!(table.contains("# Bytes of a rank's messages at size 64: 64 sent, 64 received"), "{table}");
}

#[test]
fn an_aggregator_can_be_started_by_hand_on_a_host_of_its_own() {
    let address = free_address(92);
    let start = |rank: &str| {
        let args = ["-b", "1K", "-e", "1K", "-n", "2", "--algo", "in-network", "--aggregators", "1", "--json"];
        let mut command = program("all_reduce");
        command.args(args).args(["--rank", rank, "--world", "3", "--root", &address]);
        // Ranks 0 and 1 share a host.
        command.env("RDMA_HOSTID", if rank == "2" { "switch" } else { "host" }).spawn().unwrap()
    };
    let outputs = ["0", "1", "2"].map(start).map(finish);
    let report = rdma_test_support::program::has_succeeded("rank 0", &outputs[0]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["ranks"], &report["aggregators"]), (&2.into(), &1.into()));
    assert_eq!(report["results"][0]["out_of_place"]["nwrong"], 0);
    assert!(outputs.iter().all(|output| output.status.success()));
}

#[test]
fn a_killed_aggregator_is_named() {
    for transport in ["shm", "verbs"] {
        let args = ["--algo", "in-network", "--aggregators", "2", "--transport", transport];
        let (job, processes, out) = endless("all_reduce", &args, 5);
        send(Signal::SIGKILL, processes[4]);
        let killed = Instant::now();
        let said = format!("aggregator 1 (process {}) was killed by signal 9", processes[4]);
        has_failed("all_reduce", &end(job), &said);
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        drop(out);
    }
}

#[test]
fn a_stopped_aggregator_is_named() {
    let args = ["--algo", "in-network", "--timeout", "9", "--transport", "verbs"];
    let (job, processes, out) = endless("all_reduce", &args, 4);
    send(Signal::SIGSTOP, processes[3]);
    has_failed("all_reduce", &end(job), "aggregator 0 has been silent for 3 s");
    drop(out);
}

#[test]
fn aggregators_that_mean_nothing_are_refused() {
    fail("all_reduce", &["--aggregators", "1"], "--aggregators needs --algo in-network");
    fail("all_gather", &["--algo", "in-network"], "invalid value 'in-network'");
    let alone = ["--rank", "0", "--world", "1", "--root", "127.0.0.1:9", "--algo", "in-network"];
    fail("all_reduce", &alone, "--aggregators 1 leaves no rank of 1 processes");
}
