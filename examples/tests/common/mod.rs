//! Helpers that run a program of this package and check how it ended.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary has this module, and needs a part of it")]

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

#[allow(unused_imports, reason = "not every test needs each")]
pub use rdma_test_support::program::{connect, finish, has, has_failed, text};

pub fn program(name: &str) -> Command {
    let path = match name {
        "all_reduce" => env!("CARGO_BIN_EXE_all_reduce"),
        "all_gather" => env!("CARGO_BIN_EXE_all_gather"),
        "alltoall" => env!("CARGO_BIN_EXE_alltoall"),
        "barrier" => env!("CARGO_BIN_EXE_barrier"),
        "broadcast" => env!("CARGO_BIN_EXE_broadcast"),
        "gather" => env!("CARGO_BIN_EXE_gather"),
        "hypercube" => env!("CARGO_BIN_EXE_hypercube"),
        "reduce" => env!("CARGO_BIN_EXE_reduce"),
        "reduce_scatter" => env!("CARGO_BIN_EXE_reduce_scatter"),
        "scatter" => env!("CARGO_BIN_EXE_scatter"),
        "sendrecv" => env!("CARGO_BIN_EXE_sendrecv"),
        "pingpong" => env!("CARGO_BIN_EXE_pingpong"),
        "rping" => env!("CARGO_BIN_EXE_rping"),
        "cm_time" => env!("CARGO_BIN_EXE_cm_time"),
        "tune" => env!("CARGO_BIN_EXE_tune"),
        "plan" => env!("CARGO_BIN_EXE_plan"),
        _ => env!("CARGO_BIN_EXE_devinfo"),
    };
    let mut command = Command::new(path);
    command.env_clear().env("RDMA_DEVICE", "soft0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn start(name: &str, args: &[&str]) -> Child {
    program(name).args(args).spawn().unwrap()
}

pub fn run(name: &str, args: &[&str]) -> Output {
    finish(start(name, args))
}

/// Runs a program that must succeed, and returns its standard output.
pub fn succeed(name: &str, args: &[&str]) -> String {
    rdma_test_support::program::has_succeeded(&format!("{name} {args:?}"), &run(name, args))
}

pub fn fail(name: &str, args: &[&str], part: &str) {
    has_failed(&format!("{name} {args:?}"), &run(name, args), part);
}

/// Finds an address of this host with a free port; `host` is a number that no other test uses.
pub fn free_address(host: u8) -> String {
    // Other connections use ports of 127.0.0.1 at any time; those of 127.0.0.`host` are the test's
    // own.
    TcpListener::bind(format!("127.0.0.{host}:0")).unwrap().local_addr().unwrap().to_string()
}
