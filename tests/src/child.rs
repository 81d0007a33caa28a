//! A second process for tests: the test binary again, running the same test in another role.
//!
//! Both ends exchange lines over the child's standard input and output. The test harness prints there too, so lines of ours
//! carry a mark.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rdma::{Endpoint, RemoteSlice};

const ROLE: &str = "RDMA_TEST_CHILD";
const MARK: &str = "@rdma-test ";

/// Whether this process is the child.
#[must_use]
pub fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// One end of the conversation.
#[derive(Debug)]
pub struct Channel<R, W> {
    lines: R,
    out: W,
}

/// The child's end.
pub type ChildChannel = Channel<BufReader<std::io::Stdin>, std::io::Stdout>;
/// The parent's end.
pub type ParentChannel = Channel<BufReader<ChildStdout>, ChildStdin>;

impl<R: BufRead, W: Write> Channel<R, W> {
    /// Sends bytes.
    ///
    /// # Panics
    ///
    /// If the other end is gone.
    pub fn send(&mut self, bytes: &[u8]) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.out, "\n{MARK}{hex}").and_then(|()| self.out.flush()).expect("the other process is gone");
    }

    /// Receives bytes.
    ///
    /// # Panics
    ///
    /// If the other end is gone.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).expect("a line"), 0, "the other process is gone");
            if let Some(hex) = line.trim_end().strip_prefix(MARK) {
                return (0..hex.len() / 2)
                    .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
                    .collect();
            }
        }
    }

    /// Receives a fixed number of bytes.
    ///
    /// # Panics
    ///
    /// If it is another number.
    pub fn receive_exact<const N: usize>(&mut self) -> [u8; N] {
        self.receive().try_into().expect("a message of another length")
    }

    /// Exchanges endpoints.
    ///
    /// # Panics
    ///
    /// If the other end is gone, or sends something else.
    pub fn exchange(&mut self, ours: &Endpoint) -> Endpoint {
        self.send(&ours.to_bytes());
        Endpoint::from_bytes(&self.receive()).expect("an endpoint")
    }

    /// Receives a remote slice.
    pub fn receive_slice(&mut self) -> RemoteSlice {
        RemoteSlice::from_bytes(&self.receive_exact())
    }
}

/// The child's end of the conversation.
#[must_use]
pub fn channel() -> ChildChannel {
    Channel { lines: BufReader::new(std::io::stdin()), out: std::io::stdout() }
}

/// A running child. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    /// The conversation.
    pub channel: ParentChannel,
    child: Child,
}

impl Running {
    /// Starts this test binary again, to run the test `name` (its path in the binary) as the child.
    ///
    /// # Panics
    ///
    /// If the process cannot be started.
    #[must_use]
    pub fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the child");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let out = child.stdin.take().expect("piped");
        Self { channel: Channel { lines, out }, child }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// If it cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// If its test failed, or there is no test of that name.
    pub fn finish(mut self) {
        let mut output = Vec::new();
        self.channel.lines.read_to_end(&mut output).expect("what the child says");
        let status = self.child.wait().expect("wait");
        let has_run = String::from_utf8_lossy(&output).contains("1 passed");
        assert!(status.success() && has_run, "the child's half failed, or did not run: {status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
