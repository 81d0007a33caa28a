//! Processes that are stopped and continued all the time, which ends epoll_wait(2) and other waits
//! with `EINTR` although no program has a handler.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::*;

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(|child| child.parse().unwrap()).chain([pid]).collect()
}

fn succeeds_with_interruptions(name: &str, args: &[&str]) {
    let job = start(name, args);
    let (pid, is_over) = (job.id(), AtomicBool::new(false));
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for pid in family(pid) {
                    for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
                        // Fails if the process has ended.
                        let _gone = kill(Pid::from_raw(pid.try_into().unwrap()), signal);
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let output = finish(job);
        is_over.store(true, Ordering::Relaxed);
        output
    });
    let _out = rdma_test_support::program::has_succeeded(name, &output);
}

#[test]
fn ping_pongs_go_on() {
    succeeds_with_interruptions("pingpong", &["-s", "4096", "-n", "20000"]);
    succeeds_with_interruptions("pingpong", &["-s", "4096", "-n", "20000", "--events"]);
}

#[test]
fn collectives_go_on() {
    succeeds_with_interruptions("all_reduce", &["-g", "3", "--max", "1M", "-n", "5"]);
    succeeds_with_interruptions("all_gather", &["-g", "3", "--max", "64K", "-n", "5", "--transport", "verbs"]);
}

#[test]
fn services_go_on() {
    succeeds_with_interruptions("kv", &["load", "--seconds=1", "--clients=2", "--keys=100"]);
    succeeds_with_interruptions("rpc", &["load", "--seconds=1", "--clients=2"]);
}
