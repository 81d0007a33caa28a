//! Ranks that reach each other over TCP: at loopback addresses, which count as hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output};

use nix::sys::signal::Signal;
use rdma_test_support::program::has_failed;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::*;

/// Few iterations of few sizes, of which some are odd and the last is long.
const FEW: [&str; 10] = ["-n", "2", "-w", "1", "-b", "36", "-e", "1M", "-f", "160"];

/// Checks that no value of a report is wrong, and returns its transport.
pub(crate) fn transport(name: &str, output: &Output) -> String {
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let rows = report["results"].as_array().unwrap();
    assert!(!rows.is_empty(), "{name}");
    for row in rows {
        for side in ["out_of_place", "in_place"] {
            assert!(row[side].is_null() || row[side]["nwrong"] == 0, "{name}: {row}");
        }
    }
    report["transport"].as_str().unwrap().to_owned()
}

/// The launcher's ranks are processes of one user, which have met by Unix sockets: they need
/// neither addresses nor a key.
#[test]
fn every_collective_is_right_over_tcp() {
    let programs = [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "sendrecv",
    ];
    for (at, name) in programs.into_iter().enumerate() {
        let ranks = if at % 2 == 0 { "2" } else { "4" };
        let output = run(name, &[&["--ranks", ranks, "--transport", "tcp", "--json"], &FEW[..]].concat());
        assert_eq!(transport(name, &output), "tcp", "{name}");
    }
}

/// A folder with a key.
pub(crate) fn key() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.key");
    fs::write(&path, "a key of the tests, which nobody else needs to guess").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let text = path.to_str().unwrap().to_owned();
    (folder, text)
}

/// A loopback address of a rank, which no other test and no other process of these tests takes.
pub(crate) fn address(test: u8, rank: usize) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 128 + usize::from(test) * 8 + rank, pid >> 8 & 255, pid & 255)
}

pub(crate) type Variables = Vec<(&'static str, String)>;

/// Starts a rank on each of the hosts named, with variables of its own.
fn start_on(hosts: &[&str], args: &[&str], variables: impl Fn(usize) -> Variables) -> Vec<Child> {
    let (root, world) = (free_address(9), hosts.len().to_string());
    let start = |(rank, host): (usize, &&str)| {
        let mut command = program("all_reduce");
        command.args(["--world", &world, "--root", &root, "--rank", &rank.to_string()]).args(args);
        command.env("RDMA_HOSTID", host).envs(variables(rank)).spawn().unwrap()
    };
    hosts.iter().enumerate().map(start).collect()
}

/// The outputs of ranks that have ended well.
fn run_on(hosts: &[&str], args: &[&str], variables: impl Fn(usize) -> Variables) -> Vec<Output> {
    let outputs: Vec<Output> = start_on(hosts, args, variables).into_iter().map(finish).collect();
    for output in &outputs {
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    }
    outputs
}

#[test]
fn hosts_with_addresses_and_a_key_are_connected_over_tcp() {
    let (_folder, key) = key();
    let variables = |rank| {
        vec![("RDMA_SOFT_TCP", address(0, rank)), ("RDMA_SOFT_KEY", key.clone()), ("RDMA_DEVICE", "soft0".into())]
    };
    let args = [&["--json"], &FEW[..]].concat();
    assert_eq!(transport("two hosts", &run_on(&["a", "b"], &args, variables)[0]), "tcp");
    let outputs = run_on(&["a", "a", "b", "b"], &FEW, variables);
    let said = text(&outputs[0].stdout);
    let expected = "# transport: shared memory among ranks 0-1, among 2-3; between others TCP: rank 0 has no hardware";
    assert!(said.contains(expected), "{said}");
}

/// Rank 0's key passes over the connections to it, which have no other end than this host here.
#[test]
fn rank_0_hands_out_a_key_where_that_is_trusted() {
    let args = [&["--transport", "tcp", "--job-key", "--json"], &FEW[..]].concat();
    let outputs = run_on(&["a", "b", "c"], &args, |_| Vec::new());
    assert_eq!(transport("three hosts", &outputs[0]), "tcp");
    let said = text(&outputs[0].stderr);
    assert_eq!(said.matches("rank 0 hands out a key").count(), 1, "{said}");
    assert!(!text(&outputs[1].stderr).contains("hands out"));
}

#[test]
fn without_a_key_the_error_names_both_ways_to_have_one() {
    let told =
        |rank| vec![("RDMA_SOFT_TCP", address(1, rank)), ("RDMA_JOB_KEY", if rank == 1 { "0" } else { "1" }.into())];
    for rank in start_on(&["a", "b"], &FEW, told) {
        let part = "is to listen for other hosts and has no key: set RDMA_SOFT_KEY";
        has_failed("no key", &finish(rank), part);
    }
    for rank in start_on(&["a", "b"], &FEW, told) {
        has_failed("no key", &finish(rank), "(--job-key or RDMA_JOB_KEY=1 of a program");
    }
}

#[test]
fn keys_that_differ_are_said_at_every_rank() {
    let (keys, test) = ([key(), key()], 2);
    fs::write(&keys[1].1, "another key of the tests, which fits to no other").unwrap();
    let told = |rank: usize| vec![("RDMA_SOFT_TCP", address(test, rank)), ("RDMA_SOFT_KEY", keys[rank].1.clone())];
    for rank in start_on(&["a", "b"], &[&["--transport", "tcp"], &FEW[..]].concat(), told) {
        has_failed("two keys", &finish(rank), "their keys differ (");
    }
}

#[test]
fn a_rank_that_dies_is_named_over_tcp() {
    let (job, pids, _out) = endless("all_reduce", &["--transport", "tcp"], 3);
    send(Signal::SIGKILL, pids[1]);
    let said = text(&end(job).stderr);
    assert!(said.contains("rank ") && said.contains("signal 9"), "{said}");
}

/// The two sides of a program, each with variables of its own. `host` is a number that no other
/// test uses.
fn pair(host: u8, name: &str, args: &[&str], variables: impl Fn(usize) -> Variables) -> [Output; 2] {
    let root = free_address(host);
    let start = |rank: usize, side: &[&str]| {
        let mut command = program(name);
        command.args(side).args(args).envs(variables(rank)).spawn().unwrap()
    };
    [start(0, &["--server", &root]), start(1, &[&root])].map(finish)
}

fn device_of(outputs: &[Output; 2]) -> String {
    for output in outputs {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let report: Value = serde_json::from_str(&text(&outputs[1].stdout)).unwrap();
    report["device"].as_str().unwrap().to_owned()
}

#[test]
fn pingpong_goes_over_tcp_with_the_key_of_a_file_or_of_the_server() {
    let (_folder, key) = key();
    let told = |rank| vec![("RDMA_SOFT_TCP", address(3, rank)), ("RDMA_SOFT_KEY", key.clone())];
    for op in ["send", "write", "read", "atomic"] {
        let size = if op == "atomic" { "8" } else { "200K" };
        let outputs = pair(55, "pingpong", &["--json", "-n", "20", "--op", op, "--size", size, "--check"], told);
        let device = device_of(&outputs);
        assert!(device.ends_with("; over TCP: rank 0 has no hardware"), "{device}");
    }
    let addresses = |rank| vec![("RDMA_SOFT_TCP", address(4, rank))];
    let outputs = pair(55, "pingpong", &["--json", "-n", "20", "--size", "64", "--job-key"], addresses);
    assert!(device_of(&outputs).contains("over TCP"));
    assert!(text(&outputs[0].stderr).contains("rank 0 hands out a key"), "{}", text(&outputs[0].stderr));
}

#[test]
fn both_sides_of_pingpong_say_what_keeps_them_apart() {
    let (_folder, key) = key();
    let alone = |rank| match rank {
        0 => vec![("RDMA_SOFT_TCP", address(5, rank)), ("RDMA_SOFT_KEY", key.clone())],
        _ => Vec::new(),
    };
    for output in pair(56, "pingpong", &["-n", "20"], alone) {
        has_failed("one listens", &output, "for which both have to listen, and the second does not: set RDMA_SOFT_TCP");
    }
    let without = |rank| vec![("RDMA_SOFT_TCP", address(5, rank))];
    for output in pair(56, "pingpong", &["-n", "20"], without) {
        has_failed("no key", &output, "has no key: set RDMA_SOFT_KEY at every rank");
    }
}

/// Each rank listens for requests at the address at which it listens for other hosts: no other
/// address of it is reached from there.
#[test]
fn the_connection_manager_connects_ranks_of_several_hosts() {
    let (_folder, key) = key();
    let told = |rank| vec![("RDMA_SOFT_TCP", address(11, rank)), ("RDMA_SOFT_KEY", key.clone())];
    let args = [&["--cm", "--json"], &FEW[..]].concat();
    assert_eq!(transport("three hosts", &run_on(&["a", "b", "c"], &args, told)[0]), "tcp");
    assert_eq!(transport("two and one", &run_on(&["a", "a", "b"], &args, told)[0]), "mixed");
    // Without addresses of the environment, each rank has one of its own.
    let forced = run("all_reduce", &[&["--ranks", "3", "--transport", "tcp"], &args[..]].concat());
    assert_eq!(transport("one host", &forced), "tcp");
    let table = ["--cm", "--size", "64", "-n", "20", "--test", "lat"];
    let outputs = pair(57, "pingpong", &table, told);
    assert!(outputs.iter().all(|output| output.status.success()), "{}", text(&outputs[1].stderr));
    let (out, local, remote) = (text(&outputs[1].stdout), address(11, 1), address(11, 0));
    assert!(out.contains(&format!("local address: {local}:")), "{out}");
    assert!(out.contains(&format!("remote address: {remote}:")), "{out}");
}

#[cfg(feature = "cuda")]
#[test]
fn gpu_bw_goes_over_tcp() {
    let library = rdma_cuda_stand_in::path().to_str().unwrap().to_owned();
    let told = |rank| vec![("RDMA_SOFT_TCP", address(6, rank)), ("RDMA_LIBCUDA_PATH", library.clone())];
    let args = ["--json", "--job-key", "--min", "4K", "--max", "64K", "-n", "40"];
    let outputs = pair(58, "gpu_bw", &args, told);
    assert!(device_of(&outputs).contains("over TCP"));
    let report: Value = serde_json::from_str(&text(&outputs[1].stdout)).unwrap();
    assert!(report["results"].as_array().unwrap().iter().all(|memory| memory["bandwidth"].is_array()), "{report}");
}
