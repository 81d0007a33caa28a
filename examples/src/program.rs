//! The frame of a program: its command line, its log, and its exit status.

use std::process::ExitCode;

use clap::{Command, Parser};

use crate::cli;
use crate::failure::{Failure, Kind, is_launched, log_to_stderr, say};

/// Parses the command line, runs a program's body, and turns its result into an exit status; prints
/// a failure as one line on standard error.
pub fn run<A: Parser>(program: &str, body: impl FnOnce(A) -> Result<(), Failure>) -> ExitCode {
    run_as(program, A::command(), body)
}

/// Runs a program as [`run`] does, with a variant of its command.
pub(crate) fn run_as<A: Parser>(
    program: &str,
    command: Command,
    body: impl FnOnce(A) -> Result<(), Failure>,
) -> ExitCode {
    let result = cli::parse(command).and_then(|line| {
        let Some(line) = line else { return Ok(()) };
        log_to_stderr(line.log.as_deref())?;
        body(line.args)
    });
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let is_quiet = match failure.kind() {
        Kind::BrokenPipe => true,
        // The launcher reports which rank died; without a launcher, each rank reports it.
        Kind::Peer => is_launched(),
        Kind::Failed | Kind::Usage | Kind::Partial => failure.is_reported(),
    };
    if !is_quiet {
        say(&format!("{program}: {failure}"));
    }
    ExitCode::from(failure.exit_status())
}
