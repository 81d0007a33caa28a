//! Runs the examples of the crate whose test calls, as a user does, on the software device.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::{finish, has_succeeded};

/// What a test needs that cannot start an example.
const BUILT: &str = "`cargo test` builds the examples, but with `--test` it does not: `cargo build --examples` does";

/// The file of an example.
fn command(name: &str, arguments: &[&str]) -> Command {
    let mut path = PathBuf::from(std::env::current_exe().expect("this program").parent().expect("its folder"));
    path.pop();
    let mut command = Command::new(path.join("examples").join(name));
    command.args(arguments).env("RDMA_DEVICE", "soft0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs an example to its end, and returns what it has printed.
///
/// # Panics
///
/// If the example fails, or does not end in time.
#[must_use]
pub fn run(name: &str, arguments: &[&str]) -> String {
    let child = command(name, arguments).spawn().expect(BUILT);
    has_succeeded(name, &finish(child))
}

/// An example that says `listening at ADDRESS` and serves. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    name: String,
    address: String,
    /// Open, because a program whose reader has left cannot print.
    out: BufReader<ChildStdout>,
}

impl Server {
    /// Starts an example, and waits until it listens.
    ///
    /// # Panics
    ///
    /// If it says anything else.
    #[must_use]
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = command(name, arguments).spawn().expect(BUILT);
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening at ").expect("where it listens").to_owned();
        Self { child: Some(child), name: name.to_owned(), address, out }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Interrupts it, as Ctrl-C does.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn interrupt(&self) {
        let child = self.child.as_ref().expect("it runs");
        let pid = i32::try_from(child.id()).expect("a process");
        kill(Pid::from_raw(pid), Signal::SIGINT).expect("a child");
    }

    /// Waits until it ends by itself, and returns what it has printed since it listens.
    ///
    /// # Panics
    ///
    /// If it fails, or does not end in time.
    #[must_use]
    pub fn finish(mut self) -> String {
        let child = self.child.take().expect("it runs");
        let _no_out = has_succeeded(&self.name, &finish(child));
        let mut out = String::new();
        self.out.read_to_string(&mut out).expect("a pipe");
        out
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
