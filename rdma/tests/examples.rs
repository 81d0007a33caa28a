//! Runs the examples, as a user does.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rdma_test_support::program::{finish, has_succeeded};

/// The file of an example; `cargo test` builds them all.
fn example(name: &str) -> Command {
    let mut path = PathBuf::from(std::env::current_exe().expect("this program").parent().expect("its folder"));
    path.pop();
    let mut command = Command::new(path.join("examples").join(name));
    command.env("RDMA_DEVICE", "soft0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs an example to its end, and returns what it has printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let child = example(name).args(arguments).spawn().expect("`cargo test` builds the examples");
    has_succeeded(name, &finish(child))
}

/// A server that runs until it is dropped, if it does not end before.
struct Server {
    child: Option<Child>,
    address: String,
    /// Open, because a program whose reader has left cannot print.
    _out: BufReader<ChildStdout>,
}

impl Server {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = example(name).args(arguments).spawn().expect("`cargo test` builds the examples");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening at ").expect("where it listens").to_owned();
        Self { child: Some(child), address, _out: out }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

#[test]
fn example_pingpong() {
    let mut server = Server::start("pingpong", &["listen", "127.0.0.1:0"]);
    let out = run("pingpong", &["connect", &server.address]);
    assert!(out.ends_with(" us one way\n"), "{out}");
    let ended = finish(server.child.take().expect("it runs"));
    let _out = has_succeeded("the server", &ended);
}

#[test]
fn example_datagrams() {
    let server = Server::start("datagrams", &["listen", "127.0.0.1:0"]);
    for _ in 0..6 {
        assert_eq!(run("datagrams", &["connect", &server.address]), "100 of 100 messages were answered\n");
    }
}

#[test]
fn example_echo() {
    let server = Server::start("echo", &["listen", "127.0.0.1:0"]);
    for _ in 0..3 {
        assert_eq!(run("echo", &["connect", &server.address]), "hello\n");
    }
}

#[test]
fn example_event_loop() {
    let server = Server::start("event_loop", &["127.0.0.1:0"]);
    for _ in 0..3 {
        assert_eq!(run("echo", &["connect", &server.address]), "hello\n");
    }
}

#[test]
fn example_atomics() {
    assert_eq!(
        run("atomics", &[]),
        "64 bytes were written, with 0xcafe\n5 was added to 0\n7 was added to 5\n12 became 100\n"
    );
}
