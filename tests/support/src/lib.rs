//! Support for tests that need more than one process.
//!
//! * [`Peer`]: a second process that runs the same test program, and a conversation with it.
//! * [`passes_alone`]: tests that need a process, and an environment, of their own.
//! * [`program`]: running a program under a time limit and judging how it ended.
//! * [`Compiler`]: a C compiler with rdma-core's headers.
//! * [`skip`] and [`lacks`]: tests that cannot run here.
//!
//! No test waits longer than [`LIMIT`] for another process, so that a hang is a failure that names
//! what was awaited.

mod alone;
mod channel;
mod compiler;
mod peer;
pub mod program;

use std::io::Write as _;
use std::time::{Duration, Instant};

pub use alone::{alone, passes_alone};
pub use channel::Channel;
pub use compiler::Compiler;
pub use peer::{Peer, first, role};

/// How long a test waits for another process. Generous, because machines are slow and shared.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Prints past the test harness, which hides what a passing test prints through the macros.
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
/// If `CI` is `true`: there the test must run.
pub fn lacks(reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "in CI, this test must run: {reason}");
    skip(reason);
}

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not within [`LIMIT`]; `what` says what was awaited.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
