//! The programs where something is missing: the network, `/proc`, the right to pin threads; and many on one terminal.

mod common;

use std::process::{Command, Stdio};

use common::*;
use rdma_test_support::{program::has_succeeded, skip};

/// Runs both kinds of programs by a command that runs its arguments in a sandbox.
fn run_in(sandbox: &[&str]) {
    for (name, args, last) in [
        ("all_reduce", &["-r", "3", "--max", "1K", "-n", "2"][..], "# Collective test concluded: all_reduce"),
        ("rping", &["-C", "3"], "all came back as they were"),
    ] {
        let mut command = Command::new(sandbox[0]);
        command.args(&sandbox[1..]).arg(program(name).get_program()).args(args).env("RDMA_DEVICE", "soft0");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = has_succeeded(&format!("{name} by {sandbox:?}"), &finish(child));
        assert!(out.trim_end().ends_with(last), "{out}");
    }
}

/// The options of `unshare` that work here: root's, or those for a user who may become root of a namespace.
fn unshare(option: &'static str) -> Option<Vec<&'static str>> {
    let ways = [vec!["unshare", option], vec!["unshare", "--user", "--map-root-user", option]];
    let works = |way: &Vec<&str>| {
        Command::new(way[0]).args(&way[1..]).arg("true").output().is_ok_and(|output| output.status.success())
    };
    let way = ways.into_iter().find(works);
    if way.is_none() {
        skip("the kernel gives no namespace to this user");
    }
    way
}

#[test]
fn local_ranks_need_no_network() {
    if let Some(way) = unshare("--net") {
        run_in(&way);
    }
}

#[test]
fn proc_is_not_needed() {
    if let Some(mut way) = unshare("--mount") {
        way.extend(["sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
        run_in(&way);
    }
}

#[test]
fn ranks_that_may_not_be_pinned_run() {
    if !has("strace", "strace") {
        return;
    }
    let refuse = "inject=sched_setaffinity,sched_getaffinity:error=EPERM";
    run_in(&["strace", "-f", "-o", "/dev/null", "-e", refuse]);
}

/// Standard error has no buffer: a line in pieces would be mixed with those of others.
#[test]
fn lines_of_ranks_are_not_mixed() {
    let loop_over = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$0\" \"$@\" & done; wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", loop_over]).arg(program("all_reduce").get_program()).args(["--device", "mlx9_9", "-r", "2"]);
    let output = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let err = text(&output.stderr);
    let whole = |line: &str| line.starts_with("all_reduce: rank ") && line.matches("mlx9_9").count() == 1;
    assert!(err.lines().count() == 12 && err.lines().all(whole), "{err}");
}
