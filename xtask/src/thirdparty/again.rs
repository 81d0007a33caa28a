//! The second run of failed cases, and the logs of both runs.

use super::cases::Case;
use super::pyverbs::Tests;
use super::run::Launcher;
use crate::flaky::{self, Failure, List, Summary, THIRDPARTY};
use crate::system::{make, remove, write};

/// Lines of a log that the report of a failure shows.
const PRINTED: usize = 40;

/// A case that did not end as expected.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) subject: Subject,
    pub(super) name: String,
    /// The first error.
    pub(super) error: String,
    /// All that its programs have printed.
    pub(super) log: String,
}

/// The kind of a failed case.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    /// A program, or a pair.
    Program(&'static Case),
    /// A test of pyverbs.
    Test,
    /// A failure that a second run would repeat: a missing program, an unexpected success.
    Settled,
}

/// Runs failed cases once more, one after another, and writes the logs. The summary then names what
/// passed and what failed again.
pub(super) fn run(
    launcher: &Launcher,
    python: &Tests<'_>,
    list: &List,
    failed: Vec<Failed>,
    summary: &mut Summary,
) -> Result<(), String> {
    if failed.is_empty() {
        return Ok(());
    }
    let logs = launcher.folder.join("logs");
    remove(&logs)?;
    make(&logs)?;
    let names: Vec<&str> = failed.iter().map(|failed| &*failed.name).collect();
    let (again, reason) = match list.second_run(THIRDPARTY, &names) {
        Ok(names) => (names, flaky::NO_MORE.to_owned()),
        Err(reason) => (Vec::new(), reason),
    };
    for (number, Failed { subject, name, error, log }) in (1..).zip(&failed) {
        println!("\n---- {name}: {error}\n{}", last_lines(log));
        let file = |run| logs.join(format!("{number}-{run}.log"));
        write(file("first"), &format!("{name}\n{log}"))?;
        let second = match subject {
            _ if !again.contains(&&**name) => Err(&*reason),
            Subject::Settled => Err("no second run"),
            Subject::Program(case) => {
                let (_, failed) = super::examine(launcher, case);
                Ok((failed.is_none(), launcher.printed()))
            }
            Subject::Test => Ok(python.run_again(name)),
        };
        if let Ok((_, log)) = &second {
            write(file("second"), &format!("{name}\n{log}"))?;
        }
        let failure = |error| Failure { run: THIRDPARTY.to_owned(), name: name.clone(), error };
        match second {
            Ok((true, _)) => summary.recovered(THIRDPARTY, failure(error.clone())),
            Ok((false, _)) => summary.failed(failure(format!("{error} (failed twice)"))),
            Err(reason) => summary.failed(failure(format!("{error} ({reason})"))),
        }
    }
    let all = launcher.folder.join("failed");
    summary.folder(flaky::keep(&logs, &all, THIRDPARTY)?);
    Ok(())
}

/// The end of a log.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(PRINTED)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_shown_from_its_end() {
        let log: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let shown = last_lines(&log);
        assert!(shown.starts_with("line 60\n") && shown.ends_with("\nline 99"), "{shown}");
        assert_eq!(last_lines("one\n"), "one");
    }
}
