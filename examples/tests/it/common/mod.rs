//! Helpers that run a program of this package and check how it ended.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary has this module, and needs a part of it")]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[allow(unused_imports, reason = "not every test needs each")]
pub use rdma_test_support::program::{connect, finish, has, has_failed, text};

pub fn program(name: &str) -> Command {
    let path = match name {
        "all_reduce" => env!("CARGO_BIN_EXE_all_reduce"),
        "all_gather" => env!("CARGO_BIN_EXE_all_gather"),
        "all_to_all" => env!("CARGO_BIN_EXE_all_to_all"),
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
        "training_step" => env!("CARGO_BIN_EXE_training_step"),
        "file_copy" => env!("CARGO_BIN_EXE_file_copy"),
        "rpc" => env!("CARGO_BIN_EXE_rpc"),
        "kv" => env!("CARGO_BIN_EXE_kv"),
        "tune" => env!("CARGO_BIN_EXE_tune"),
        "plan" => env!("CARGO_BIN_EXE_plan"),
        #[cfg(feature = "cuda")]
        "gpu_bw" => env!("CARGO_BIN_EXE_gpu_bw"),
        #[cfg(feature = "cuda")]
        "gpu_doctor" => env!("CARGO_BIN_EXE_gpu_doctor"),
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

/// Starts a job of three ranks that would take very long, and waits until it works. Returns its
/// processes, of which there are `processes`, and its output.
pub fn endless(program: &str, more: &[&str], processes: usize) -> (Child, Vec<u32>, impl BufRead + use<>) {
    let args = ["-g", "3", "-b", "64K", "-e", "64K", "-n", "100000000", "-c", "0"];
    running(program, &[&args, more].concat(), "(elements)", processes)
}

/// Starts a job, and waits until it prints a line that contains `mark`. Returns its processes, of
/// which there are `processes`, and its output.
pub fn running(program: &str, args: &[&str], mark: &str, processes: usize) -> (Child, Vec<u32>, impl BufRead + use<>) {
    let mut job = start(program, args);
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(mark) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    let path = format!("/proc/{}/task/{}/children", job.id(), job.id());
    let ranks = std::fs::read_to_string(path).unwrap();
    let ranks: Vec<u32> = ranks.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(ranks.len(), processes);
    (job, ranks, out)
}

/// Waits for the end of a job whose output is read elsewhere.
pub fn end(mut job: Child) -> Output {
    let mut err = Vec::new();
    job.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    Output { status: job.wait().unwrap(), stdout: Vec::new(), stderr: err }
}

pub fn send(signal: Signal, pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// A server in the background, which has printed its address as JSON. Dropping it kills it.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    /// The object that it has printed.
    pub fields: serde_json::Value,
}

impl Server {
    /// Starts a server of `program` with these arguments on a free port.
    pub fn start(name: &str, args: &[&str]) -> Self {
        Self::of(program(name).args(args))
    }

    /// Starts a server by a command that ends with its arguments.
    pub fn of(command: &mut Command) -> Self {
        let mut child = command.args(["--port=0", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            panic!("the server ended: {:?}", finish(child));
        }
        let fields: serde_json::Value = serde_json::from_str(&line).expect("the server prints its address");
        Self { child, address: fields["address"].as_str().unwrap().parse().unwrap(), fields }
    }

    /// Runs a client: `command`, the server's address, and more arguments.
    pub fn client(&self, name: &str, command: &str, args: &[&str]) -> Output {
        finish(self.spawn(name, command, args))
    }

    pub fn spawn(&self, name: &str, command: &str, args: &[&str]) -> Child {
        let (ip, port) = (self.address.ip().to_string(), format!("--port={}", self.address.port()));
        start(name, &[&[command, &ip, &port], args].concat())
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
