//! Running a program of this package, and judging how it ended.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary has this module, and needs a part of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes longer, on a machine that does other things as well.
pub const LIMIT: Duration = Duration::from_secs(120);

pub fn program(name: &str) -> Command {
    let path = match name {
        "all_reduce" => env!("CARGO_BIN_EXE_all_reduce"),
        "pingpong" => env!("CARGO_BIN_EXE_pingpong"),
        "rping" => env!("CARGO_BIN_EXE_rping"),
        "cm_time" => env!("CARGO_BIN_EXE_cm_time"),
        _ => env!("CARGO_BIN_EXE_devinfo"),
    };
    let mut command = Command::new(path);
    command.env_clear().env("RDMA_DEVICE", "soft0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn start(name: &str, args: &[&str]) -> Child {
    program(name).args(args).spawn().unwrap()
}

/// Waits for a program, but not for ever.
pub fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    // Read while it runs: a full pipe would stop it.
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("still running after {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: out.join().unwrap().unwrap(), stderr: err.join().unwrap().unwrap() }
}

pub fn run(name: &str, args: &[&str]) -> Output {
    finish(start(name, args))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program that is to succeed, and returns its standard output.
pub fn succeed(name: &str, args: &[&str]) -> String {
    let output = run(name, args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name} {args:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Checks that a program has failed with one line on standard error that contains `part`.
pub fn has_failed(what: &str, output: &Output, part: &str) {
    let err = text(&output.stderr);
    assert!(!output.status.success(), "{what} succeeded");
    assert!(output.status.code().is_some_and(|code| code != 101), "{what}: {}\n{err}", output.status);
    assert_eq!(err.lines().count(), 1, "{what}: more or less than one line:\n{err}");
    assert!(err.contains(part), "{what}: {part:?} is not in {err}");
}

pub fn fail(name: &str, args: &[&str], part: &str) {
    has_failed(&format!("{name} {args:?}"), &run(name, args), part);
}

/// An address of this host that nobody listens on: `host` is a number that no other test uses.
pub fn free_address(host: u8) -> String {
    // Ports of 127.0.0.1 come and go with other connections; those of its neighbours are the test's own.
    TcpListener::bind(format!("127.0.0.{host}:0")).unwrap().local_addr().unwrap().to_string()
}

/// Connects to a program that has just been started.
pub fn connect(address: &str) -> TcpStream {
    let deadline = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program that a test needs is there. Without it the test counts as skipped, and in CI as failed.
pub fn has(test: &str, tool: &str, package: &str) -> bool {
    let reason = match Command::new(tool).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => format!("{tool} --version ended with {}", output.status),
        Err(error) => format!("no {tool} (Debian's {package}): {error}"),
    };
    assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "in CI, this test must run: {reason}");
    // Not through the macros, whose output of tests that pass is not shown.
    std::io::stderr().write_all(format!("SKIP {test}: {reason}\n").as_bytes()).unwrap();
    false
}
