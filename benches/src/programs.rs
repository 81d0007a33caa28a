//! Other programs that a benchmark runs.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Runs `command` to its end; its output becomes the error's text if it fails.
///
/// # Errors
///
/// If the command cannot be started, or fails.
pub fn run(command: &mut Command) -> io::Result<Output> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?} failed ({}):\n{text}", output.status)))
}

/// Builds programs of the project in release mode and returns their folder.
///
/// # Errors
///
/// The build's error.
pub fn build(names: &[&str]) -> io::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["build", "--release", "-p", "rdma-examples", "-p", "soft-rdma", "--message-format=json"]);
    for name in names {
        command.args(["--bin", name]);
    }
    let output = run(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let folder = programs.next().and_then(|program| Some(program.parent()?.to_owned()));
    folder.ok_or_else(|| io::Error::other("cargo did not say where the programs are"))
}

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both calls have nothing to do if the child has ended.
        let _ended = (self.0.kill(), self.0.wait());
    }
}
