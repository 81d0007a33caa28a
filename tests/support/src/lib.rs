//! Support for tests that need more than one process.
//!
//! * [`Peer`]: a second process that runs the same test program, and a conversation with it.
//! * [`passes_alone`]: runs tests that need a process and an environment of their own.
//! * [`holds_in_child`]: a check in a forked child.
//! * [`example`]: runs the examples of a crate.
//! * [`program`]: runs a program under a time limit and checks how it ended.
//! * [`signals`]: signals that interrupt system calls.
//! * [`allocations`]: an allocator that counts.
//! * [`trees`]: compares trees of files; `compare_trees` is the program.
//! * [`Compiler`]: a C compiler with rdma-core's headers.
//! * [`LoggedEvent`]: the log events of a crate, in its source and in its docs.
//! * [`OnEvent`] and [`where_logging_panics`]: log subscribers from a function.
//! * [`skip`] and [`lacks`]: report tests that cannot run here; [`has_recorded_compiler`] asks for
//!   the compiler of the tests that must not compile.
//!
//! No test waits longer than [`LIMIT`] for another process, so a hang becomes a failure that names
//! the awaited thing.

pub mod allocations;
mod alone;
mod channel;
mod compiler;
mod events;
pub mod example;
mod forked;
mod peer;
pub mod program;
pub mod signals;
mod subscriber;
pub mod trees;

use std::io::Write as _;
use std::time::{Duration, Instant};

pub use alone::{alone, passes_alone};
pub use channel::Channel;
pub use compiler::Compiler;
pub use events::{LoggedEvent, assert_documented};
pub use forked::holds_in_child;
pub use peer::{Peer, first, role};
pub use subscriber::{OnEvent, where_logging_panics};

/// Time limit of a wait for another process; generous, because machines may be slow and shared.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Prints a line directly: the test harness hides the output of the print macros in a passing test.
pub fn say(line: &str) {
    let _printed = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Reports that the running test was skipped because the device under test lacks something.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    say(&format!("SKIP {}: {reason}", thread.name().unwrap_or("test")));
}

/// Reports that the running test was skipped because this machine lacks something that CI has.
///
/// # Panics
///
/// If `CI` is `true`, where the test must run.
pub fn lacks(reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "in CI, this test must run: {reason}");
    skip(reason);
}

/// Whether this compiler words its messages as they are recorded for tests that must not compile.
/// If not, reports the running test as skipped.
#[must_use]
pub fn has_recorded_compiler() -> bool {
    /// Other releases word their messages differently.
    const RECORDED_WITH: &str = "rustc 1.95.";
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = std::process::Command::new(rustc).arg("-V").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_it = version.starts_with(RECORDED_WITH);
    if !is_it {
        skip(&format!("messages are recorded with {RECORDED_WITH}x, this is {}", version.trim()));
    }
    is_it
}

/// Waits until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within [`LIMIT`]; `what` names the condition.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
