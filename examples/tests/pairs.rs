//! Ranks of several hosts, which share memory inside each host: `RDMA_HOSTID` makes hosts of this
//! one.

mod common;

use std::process::{Child, Command, Output};

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Few iterations of few sizes, of which some are odd.
const FEW: [&str; 10] = ["-n", "2", "-w", "1", "-b", "36", "-f", "50", "--chunk", "8K"];

/// Starts a rank on each of the hosts named.
fn start_on(program_name: &str, hosts: &[&str], root: &str, args: &[&str]) -> Vec<Child> {
    let world = hosts.len().to_string();
    let start = |(rank, host): (usize, &&str)| {
        let mut command: Command = program(program_name);
        command.env("RDMA_HOSTID", host).args(["--rank", &rank.to_string(), "--world", &world, "--root", root]);
        command.args(args).spawn().unwrap()
    };
    hosts.iter().enumerate().map(start).collect()
}

/// Runs a rank on each of the hosts named, and returns the report of rank 0.
fn report(name: &str, hosts: &[&str], args: &[&str]) -> Value {
    let root = free_address(7);
    let ranks = start_on(name, hosts, &root, &[&["--json"], &FEW[..], args].concat());
    let outputs: Vec<Output> = ranks.into_iter().map(finish).collect();
    for output in &outputs {
        assert!(output.status.success(), "{name} {args:?}: {}", text(&output.stderr));
    }
    let report: Value = serde_json::from_str(&text(&outputs[0].stdout)).unwrap();
    for row in report["results"].as_array().unwrap() {
        for side in ["out_of_place", "in_place"] {
            assert!(row[side].is_null() || row[side]["nwrong"] == 0, "{name} {args:?}: {row}");
        }
    }
    report
}

fn is_right(name: &str, hosts: &[&str], args: &[&str]) {
    assert_eq!(report(name, hosts, args)["transport"], "mixed", "{name}");
}

const TWO_BY_TWO: [&str; 4] = ["a", "a", "b", "b"];

#[test]
fn every_algorithm_is_right_between_hosts_that_share_memory_inside() {
    let cases: [(&str, &[&str]); 11] = [
        (
            "all_reduce",
            &["ring", "direct", "tree", "recursive-doubling", "halving-doubling", "two-step", "hierarchical"],
        ),
        ("all_gather", &["ring", "recursive-doubling", "bruck", "pat", "hierarchical"]),
        ("reduce_scatter", &["ring", "halving-doubling", "bruck", "pat", "hierarchical"]),
        ("alltoall", &["direct", "pairwise"]),
        ("broadcast", &["ring", "tree", "two-step", "binomial"]),
        ("reduce", &["ring", "tree", "two-step", "binomial"]),
        ("barrier", &["recursive-doubling", "bruck", "hierarchical"]),
        ("gather", &["auto"]),
        ("scatter", &["auto"]),
        ("sendrecv", &["auto"]),
        ("hypercube", &["auto"]),
    ];
    for (program, algorithms) in cases {
        for algorithm in algorithms {
            is_right(program, &TWO_BY_TWO, &["-e", "100K", "--algo", algorithm]);
        }
    }
}

#[test]
fn hosts_of_different_sizes_are_right() {
    for hosts in [&["a", "b", "a"][..], &["a", "b", "b", "b", "a"]] {
        for program in ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"] {
            is_right(program, hosts, &["-e", "300K"]);
        }
    }
    is_right("all_reduce", &["a", "b", "a"], &["-e", "2K", "-d", "all", "-o", "all"]);
}

/// Messages of many pieces, with more of them under way than a rank has slots; and arrivals told
/// otherwise.
#[test]
fn long_messages_are_right() {
    for program in ["all_reduce", "alltoall", "reduce"] {
        let size = ["-b", "1M", "-e", "1M", "--chunk", "4K"];
        is_right(program, &["a", "b", "a"], &[&size[..], &["--messages"]].concat());
        is_right(program, &["a", "b", "b"], &[&size[..], &["--completions"]].concat());
    }
}

#[test]
fn transports_are_printed_and_can_be_forced() {
    let root = free_address(8);
    let mut ranks = start_on("all_reduce", &TWO_BY_TWO, &root, &["-b", "1K", "-e", "1K", "-n", "2"]).into_iter();
    let first = finish(ranks.next().unwrap());
    ranks.for_each(|rank| assert!(finish(rank).status.success()));
    let line = "# transport: shared memory among ranks 0-1, among 2-3; verbs between others";
    assert!(text(&first.stdout).lines().any(|printed| printed == line), "{}", text(&first.stdout));
    let transport = |hosts: &[&str], args: &[&str]| report("all_reduce", hosts, args)["transport"].clone();
    assert_eq!(transport(&TWO_BY_TWO, &["-e", "2K", "--transport", "verbs"]), "verbs");
    assert_eq!(transport(&["a", "b"], &["-e", "2K"]), "verbs");
    assert_eq!(transport(&["a", "a"], &["-e", "2K"]), "shm");
    for rank in start_on("all_reduce", &["a", "a", "b"], &root, &["--transport", "shm"]) {
        has_failed("--transport shm", &finish(rank), "no shared memory (the ranks are on several hosts)");
    }
}

#[test]
fn a_killed_rank_of_another_host_is_named() {
    let root = free_address(9);
    let args = ["-b", "64K", "-e", "64K", "-n", "100000000", "-c", "0", "--timeout", "20"];
    let mut ranks = start_on("all_gather", &TWO_BY_TWO, &root, &args);
    let victim = ranks.remove(3);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    kill(Pid::from_raw(i32::try_from(victim.id()).unwrap()), Signal::SIGKILL).unwrap();
    for rank in ranks {
        has_failed("all_gather", &finish(rank), "rank 3 ended without a word");
    }
    drop(finish(victim));
}
