//! Ranks of several hosts, which share memory inside each host: `RDMA_HOSTID` makes hosts of this
//! one.

use std::io::Read;
use std::process::{Child, Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::*;

/// Few iterations of few sizes, of which some are odd.
const FEW: [&str; 10] = ["-n", "2", "-w", "1", "-b", "36", "-f", "50", "--chunk", "8K"];

/// The first line that a program prints on standard error.
fn said(child: &mut Child) -> String {
    let (mut line, mut byte) = (String::new(), [0]);
    // A buffer would take more than the line.
    while child.stderr.as_mut().unwrap().read(&mut byte).unwrap() > 0 && byte != *b"\n" {
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn a_wait_for_a_peer_is_said() {
    let address = free_address(50);
    let few = ["-s", "64", "-n", "10", "--timeout", "60"];
    let mut client = start("pingpong", &[&[&address[..]], &few[..]].concat());
    assert_eq!(said(&mut client), format!("waiting for {address}"));
    let server = start("pingpong", &[&["--server", &address], &few[..]].concat());
    for side in [client, server] {
        let output = finish(side);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let address = free_address(51);
    let few = ["--world", "2", "--root", &address, "--max", "64", "-n", "2", "--timeout", "60"];
    let mut first = start("all_reduce", &[&["--rank", "0"], &few[..]].concat());
    assert_eq!(said(&mut first), format!("waiting for the other process at {address}"));
    let second = start("all_reduce", &[&["--rank", "1"], &few[..]].concat());
    for rank in [first, second] {
        let output = finish(rank);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let address = free_address(52);
    let mut compat = start("pingpong", &["--compat", &address, "--timeout", "60"]);
    assert_eq!(said(&mut compat), format!("waiting for {address}"));
    compat.kill().unwrap();
    compat.wait().unwrap();
}

/// Variables of a rank.
type Variables = Vec<(&'static str, &'static str)>;

/// Starts a rank on each of the hosts named.
fn start_on(name: &str, hosts: &[&str], root: &str, args: &[&str]) -> Vec<Child> {
    start_with(name, hosts, root, args, |_| Vec::new())
}

fn start_with(
    name: &str,
    hosts: &[&str],
    root: &str,
    args: &[&str],
    variables: impl Fn(usize) -> Variables,
) -> Vec<Child> {
    let world = hosts.len().to_string();
    let start = |(rank, host): (usize, &&str)| {
        let mut command: Command = program(name);
        command.envs(variables(rank)).env("RDMA_HOSTID", host).args([
            "--rank",
            &rank.to_string(),
            "--world",
            &world,
            "--root",
            root,
        ]);
        command.args(args).spawn().unwrap()
    };
    hosts.iter().enumerate().map(start).collect()
}

/// Runs a rank on each of the hosts named, and returns the report of rank 0.
fn report(name: &str, hosts: &[&str], args: &[&str]) -> Value {
    report_with(name, hosts, args, |_| Vec::new())
}

fn report_with(name: &str, hosts: &[&str], args: &[&str], variables: impl Fn(usize) -> Variables) -> Value {
    let root = free_address(7);
    let ranks = start_with(name, hosts, &root, &[&["--json"], &FEW[..], args].concat(), variables);
    let outputs: Vec<Output> = ranks.into_iter().map(finish).collect();
    for output in &outputs {
        assert!(output.status.success(), "{name} {args:?}: {}", text(&output.stderr));
    }
    right(name, args, serde_json::from_str(&text(&outputs[0].stdout)).unwrap())
}

/// Checks that a report has no wrong values.
fn right(name: &str, args: &[&str], report: Value) -> Value {
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
            &[
                "ring",
                "direct",
                "tree",
                "recursive-doubling",
                "halving-doubling",
                "two-step",
                "hierarchical",
                "hierarchical-halving",
            ],
        ),
        ("all_gather", &["ring", "recursive-doubling", "bruck", "pat", "hierarchical", "hierarchical-halving"]),
        ("reduce_scatter", &["ring", "halving-doubling", "bruck", "pat", "hierarchical", "hierarchical-halving"]),
        ("all_to_all", &["direct", "pairwise"]),
        ("broadcast", &["ring", "tree", "two-step", "binomial"]),
        ("reduce", &["direct", "ring", "tree", "two-step", "binomial"]),
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
        for program in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"] {
            is_right(program, hosts, &["-e", "300K"]);
        }
    }
    is_right("all_reduce", &["a", "b", "a"], &["-e", "2K", "-d", "all", "-o", "all"]);
    // A number of hosts that is no power of two.
    for program in ["all_reduce", "all_gather", "reduce_scatter"] {
        is_right(program, &["a", "b", "c", "b", "a"], &["-e", "300K", "--algo", "hierarchical-halving"]);
    }
}

/// Messages of many pieces, with more of them under way than a rank has slots; and arrivals told
/// otherwise.
#[test]
fn long_messages_are_right() {
    for program in ["all_reduce", "all_to_all", "reduce"] {
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

/// A job of three ranks on the devices `soft0` and `soft1`; returns the report.
fn on_two_devices(name: &str, args: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut command = program(name);
    command.env("RDMA_SOFT_DEVICES", "2").env("RDMA_DEVICE", "soft").envs(variables.iter().copied());
    command.args(["--json", "-g", "3", "--transport", "verbs"]).args(FEW).args(args);
    let out = rdma_test_support::program::has_succeeded(name, &finish(command.spawn().unwrap()));
    right(name, args, serde_json::from_str(&out).unwrap())
}

/// The bytes that rank 0 has sent by each rail.
fn sent(report: &Value) -> Vec<(String, u64)> {
    let rails = report["rails"].as_array().unwrap().iter();
    rails.map(|rail| (rail["rail"].as_str().unwrap().to_owned(), rail["sent"].as_u64().unwrap())).collect()
}

fn is_even(report: &Value) {
    let sent = sent(report);
    let [(first, one), (second, two)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!([first, second], ["soft0:1", "soft1:1"]);
    assert!(*one > 500_000 && one.abs_diff(*two) < one / 4, "{sent:?}");
}

#[test]
fn long_messages_travel_on_every_rail() {
    for (program, args) in [
        ("all_reduce", &["--algo", "ring"][..]),
        ("all_reduce", &["--completions"]),
        ("all_to_all", &["--messages"]),
        ("broadcast", &["--qps-per-connection", "3"]),
    ] {
        is_even(&on_two_devices(program, &[&["-b", "600K", "-e", "600K", "--rails", "2"], args].concat(), &[]));
    }
    is_even(&on_two_devices("reduce_scatter", &["-b", "600K", "-e", "600K"], &[("RDMA_RAILS", "all")]));
    let one = on_two_devices("all_gather", &["-e", "600K"], &[("RDMA_QPS_PER_CONNECTION", "4")]);
    assert!(matches!(&sent(&one)[..], [(name, bytes)] if name == "soft0:1" && *bytes > 500_000), "{one}");
}

#[test]
fn rails_join_hosts_that_share_memory_inside() {
    for cross_rail in ["0", "1", "2"] {
        let rails = ["--rails", "2", "--qps-per-connection", "2", "--cross-rail", cross_rail];
        let size = ["-b", "600K", "-e", "600K", "--algo", "hierarchical"];
        let two = [("RDMA_SOFT_DEVICES", "2"), ("RDMA_DEVICE", "soft")];
        let hosts = [["a", "a", "b"], ["a", "b", "b"]];
        for hosts in hosts {
            let report = report_with("all_reduce", &hosts, &[&size[..], &rails].concat(), |_| two.to_vec());
            assert_eq!(report["transport"], "mixed");
            assert!(sent(&report).iter().all(|(_, bytes)| *bytes > 100_000), "{report}");
        }
    }
}

/// Rank 0 has two rails, and the others one.
#[test]
fn ranks_with_different_numbers_of_rails_are_connected() {
    for (cross_rail, rails_used) in [("0", 1), ("2", 2)] {
        let args = ["-b", "600K", "-e", "600K", "--rails", "all", "--cross-rail", cross_rail, "--transport", "verbs"];
        let report = report_with("all_gather", &["a", "b", "b"], &args, |rank| {
            vec![("RDMA_SOFT_DEVICES", "2"), ("RDMA_DEVICE", if rank == 0 { "soft" } else { "=soft1" })]
        });
        assert_eq!(sent(&report).iter().filter(|(_, bytes)| *bytes > 0).count(), rails_used, "{report}");
    }
}

#[test]
fn rails_that_cannot_be_had_are_said() {
    fail(
        "all_reduce",
        &["-g", "2", "--rails", "2"],
        "2 rails are wanted, and --device or RDMA_DEVICE leaves 1: soft0:1",
    );
    fail("all_reduce", &["-g", "2", "--rails", "0"], "give 1 to 64, or all");
    for (name, value, said) in [
        ("RDMA_RAILS", "x", "give 1 to 64, or all"),
        ("RDMA_QPS_PER_CONNECTION", "129", "give 1 to 128"),
        ("RDMA_CROSS_RAIL", "3", "give 0 to 2"),
    ] {
        let output = finish(program("all_reduce").args(["-g", "1"]).env(name, value).spawn().unwrap());
        has_failed(name, &output, &format!("{name} is \"{value}\" in the environment: {said}"));
    }
}
