//! How the launcher ends by itself: one line that says what went wrong and what to do, and an exit
//! status.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
use nix::errno::Errno;

/// The reason why the launcher cannot go on.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    /// Empty if the reader of standard output is gone, which is no failure.
    text: String,
}

impl Failure {
    /// A failure of the launcher; `text` says what did not work, and what to do about it.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { status: 1, text: text.into() }
    }

    /// A failure caused by invalid arguments.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { status: 2, text: text.into() }
    }

    /// Returns the failure with a prefix that names what was being done.
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// The exit status for this failure, which is printed on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.text.is_empty() {
            eprintln!("soft-rdma: {self}");
        }
        ExitCode::from(self.status)
    }

    /// Prints a failure with which the launcher goes on.
    pub(crate) fn warn(&self) {
        eprintln!("soft-rdma: warning: {self}");
    }
}

/// On one line.
impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.text.lines().map(str::trim).filter(|line| !line.is_empty());
        formatter.write_str(&lines.collect::<Vec<_>>().join(" "))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { status: 0, text: String::new() },
            _ => Self::new(explained(&error)),
        }
    }
}

/// The text of an error, with advice where a limit of this process is the cause.
pub(crate) fn explained(error: &io::Error) -> String {
    let advice = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(Errno::EAGAIN) => "; raise the limit of processes and threads (`ulimit -u`)",
        _ => "",
    };
    format!("{error}{advice}")
}

impl From<rdma::Error> for Failure {
    fn from(error: rdma::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Parses the command line. `--help` and `--version` print their text and return `None`.
pub(crate) fn parse<A: Parser>() -> Result<Option<A>, Failure> {
    let error = match A::try_parse() {
        Ok(arguments) => return Ok(Some(arguments)),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        error.print()?;
        return Ok(None);
    }
    // Clap's first paragraph says what is wrong; its usage and tips follow.
    let text = error.to_string();
    let first = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    Err(Failure::usage(format!("{first} (--help shows all options)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_as_one_line() {
        assert_eq!(Failure::new("no such\n  device\n\n").context("soft7").to_string(), "soft7: no such device");
    }

    #[test]
    fn a_broken_pipe_is_a_quiet_success() {
        let quiet = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(quiet.status == 0 && quiet.text.is_empty());
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::NotFound)).status, 1);
    }
}
