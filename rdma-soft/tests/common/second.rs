//! A second process: this test program again, which does what it is told, line by line.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Set in the second process.
pub(crate) const ROLE: &str = "RDMA_SOFT_TEST_PUPPET";
/// Answers begin with it, to tell them from what the test harness prints.
const MARK: &str = "@ ";

/// The second process, as the first one sees it. Killed when dropped.
pub(crate) struct Second {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Second {
    /// Starts it with the test that is its part, which finds `role` in the environment.
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn say(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process has ended");
            // The harness may have begun the line.
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Says something and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: no requirement; the child is not waited for yet, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Stops the process, and waits until all of its threads stand still.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a valid out parameter; the child is not waited for elsewhere meanwhile.
        let stopped = unsafe { libc::waitpid(self.pid(), &raw mut status, libc::WUNTRACED) };
        assert!(stopped == self.pid() && libc::WIFSTOPPED(status));
    }

    /// Kills the process, as nothing can prevent.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process, which must agree.
    pub(crate) fn finish(mut self) {
        self.say("quit");
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // Both fail where the process is gone, as it should be.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Answers, in the second process.
pub(crate) fn reply(text: &str) {
    let mut output = io::stdout().lock();
    writeln!(output, "{MARK}{text}").unwrap();
    output.flush().unwrap();
}
