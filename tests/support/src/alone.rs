//! Runs tests in a process of their own.

use std::process::Command;

/// Builds a command that runs tests of this test program, ignored ones too, in a process of its
/// own.
///
/// `tests` are full names, as libtest prints them.
///
/// # Panics
///
/// If the path of this program is unknown.
#[must_use]
pub fn alone(tests: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's file"));
    command.arg("--exact").args(tests).args(["--include-ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs tests of this test program in a process of its own, with these environment variables set.
///
/// # Panics
///
/// If a test fails or does not exist.
pub fn passes_alone(tests: &[&str], environment: &[(&str, &str)]) {
    let output = alone(tests).envs(environment.iter().copied()).output().expect("a second process");
    let out = String::from_utf8_lossy(&output.stdout);
    let passed = out.contains(&format!(" {} passed", tests.len()));
    assert!(output.status.success() && passed, "{out}\n{}", String::from_utf8_lossy(&output.stderr));
}
