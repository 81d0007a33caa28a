//! A second process that runs one test of the same test program in a role.

use std::io::{stdin, stdout};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::channel::Channel;
use crate::{alone, until};

const ROLE: &str = "RDMA_TEST_ROLE";
/// Environment variable that names a program, which starts second processes: on another host, say.
/// Its arguments are the command, which it executes in its own place.
const LAUNCHER: &str = "RDMA_TEST_PEER_LAUNCHER";

/// The role of this process, if it is a second process.
#[must_use]
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The conversation with the first process, for a second process.
///
/// # Panics
///
/// If no descriptor is left.
#[must_use]
pub fn first() -> Channel {
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    Channel::new(own(stdin().as_fd()), own(stdout().as_fd()))
}

/// A second process, as the first one sees it; killed when dropped.
///
/// Dereferences to the conversation with the process.
#[derive(Debug)]
pub struct Peer {
    channel: Channel,
    child: Child,
    pid: Pid,
}

impl Peer {
    /// Starts this test program again to run one test, which reads its part from [`role`].
    ///
    /// # Panics
    ///
    /// If the process cannot be started.
    #[must_use]
    pub fn start(test: &str, role: &str) -> Self {
        Self::start_with(test, role, |_| {})
    }

    /// Like [`start`](Self::start), with a change to the command.
    ///
    /// # Panics
    ///
    /// If the process cannot be started.
    #[must_use]
    pub fn start_with(test: &str, role: &str, tune: impl FnOnce(&mut Command)) -> Self {
        let mut command = launched(alone(&[test]));
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        tune(&mut command);
        let mut child = command.spawn().expect("a second process");
        let input = child.stdout.take().expect("piped").into();
        let output = child.stdin.take().expect("piped").into();
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process number"));
        Self { channel: Channel::new(input, output), child, pid }
    }

    /// The process number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        // The child has not been waited for, so the number cannot have been reused.
        kill(self.pid, signal).expect("a signal");
    }

    /// Stops the process and waits until all of its threads have stopped.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let stopped = waitpid(self.pid, Some(WaitPidFlag::WUNTRACED));
        assert!(matches!(stopped, Ok(WaitStatus::Stopped(..))), "{stopped:?}");
        // The kernel stops one thread after the other; `waitpid` returns when it has begun.
        until("the threads of a stopped process stand still", || all_threads_are_stopped(self.pid));
    }

    /// Resumes a stopped process.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process and waits for its end.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn kill(&mut self) {
        self.child.kill().expect("a signal");
        self.wait();
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child")
    }

    /// Closes the conversation and waits for the end of the process.
    ///
    /// # Panics
    ///
    /// If the process's test failed or did not run.
    pub fn finish(mut self) {
        self.channel.hang_up();
        let mut has_passed = false;
        while let Some(line) = self.channel.next_line() {
            has_passed |= line.contains(" 1 passed");
        }
        let status = self.wait();
        assert!(status.success() && has_passed, "the second process failed, or its test did not run: {status}");
    }
}

impl Deref for Peer {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both calls fail if the process has ended already, as usual.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The command as the launcher starts it, if there is one.
fn launched(command: Command) -> Command {
    let Some(launcher) = std::env::var_os(LAUNCHER) else { return command };
    let mut launched = Command::new(launcher);
    launched.arg(command.get_program()).args(command.get_args());
    launched
}

fn all_threads_are_stopped(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process's threads");
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok()).all(|stat| {
        // The state follows the name, which is in parentheses.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}
