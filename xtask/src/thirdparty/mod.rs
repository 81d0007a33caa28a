//! `cargo xtask thirdparty`: runs Debian's RDMA programs, programs over other Rust crates (the
//! workspace `thirdparty`), these crates' own tests and examples, a program that calls libibverbs
//! as NCCL does (`nccl`), and rdma-core's tests in Python on the software device, through
//! `soft-rdma`, and prints tables.

mod again;
mod cases;
mod pyverbs;
mod registry;
mod run;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::flaky::{Failure, List, Summary, THIRDPARTY, first_error};
use crate::system::{cargo, make, output};
use again::{Failed, Subject};
use cases::{CASES, Case, Kind, OURS, Outcome};
use pyverbs::Tests;
use run::{Ended, Launcher};

/// Option of cargo for crates whose debug information nobody reads.
const NO_DEBUG: &str = "--config=profile.dev.debug=0";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only the command lines and tests whose names contain this text. Tests of pyverbs run
    /// with it if it has `tests.` or `newest`, or if no command line contains it.
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// Run `soft-rdma` as the development profile builds it, which is quicker to build.
    #[arg(long)]
    dev: bool,
}

/// A case's line in the table.
struct Line {
    text: String,
    result: String,
    took: Duration,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (root, only) = (crate::root(), options.only.as_deref());
    let list = List::read(&root)?;
    let launcher = build(&root, options.dev)?;
    let is_wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let wanted: Vec<&Case> = CASES.iter().filter(|case| is_wanted(&case.text())).collect();
    let python = match only {
        Some(text) if !wanted.is_empty() && !pyverbs::is_named(text) => Tests::none(&launcher),
        _ => Tests::fetch(&launcher)?,
    };
    let tests = python.names();
    if only.is_none() {
        let cases: Vec<String> = CASES.iter().map(Case::text).collect();
        let unknown = list.names(THIRDPARTY).filter(|name| python.may_lack(name));
        list.check(THIRDPARTY, cases.iter().chain(&tests).map(String::as_str).chain(unknown))?;
    }
    let tests: Vec<&str> = tests.iter().map(String::as_str).filter(|name| is_wanted(name)).collect();
    if wanted.is_empty() && tests.is_empty() {
        let programs: BTreeSet<&str> = CASES.iter().map(|case| case.program).collect();
        let programs = programs.into_iter().collect::<Vec<_>>().join(", ");
        let only = only.unwrap_or_default();
        let skipped: String = python.skipped().map(|skipped| format!("; {skipped}")).collect();
        return Err(format!("no test of pyverbs and no program matches {only:?}; programs: {programs}{skipped}"));
    }
    if wanted.iter().any(|case| case.kind == Kind::Crate) {
        build_crates(&root, &launcher)?;
    }
    if wanted.iter().any(|case| case.kind.is_of_registry()) {
        registry::build(&root, &launcher)?;
    }
    let (lines, failed): (Vec<Line>, Vec<Option<Failed>>) = wanted.iter().map(|case| examine(&launcher, case)).unzip();
    print(&lines);
    let report = python.run(&tests);
    report.print();
    let mut summary = Summary::default();
    if let (None, Err(error)) = (only, report.is_whole()) {
        summary.failed(Failure { run: THIRDPARTY.into(), name: "pyverbs".into(), error });
    }
    let failed: Vec<Failed> = failed.into_iter().flatten().chain(report.failed).collect();
    again::run(&launcher, &python, &list, failed, &mut summary)?;
    summary.finish()
}

fn print(lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    println!("\n{:>7}  {:<62}  result", "seconds", "program");
    for Line { text, result, took } in lines {
        println!("{:7.1}  {text:<62}  {result}", took.as_secs_f64());
    }
}

/// Builds `soft-rdma`, and the program that is a peer of C programs, with the features of the whole
/// workspace, as `cargo run` builds them.
fn build(root: &Path, dev: bool) -> Result<Launcher, String> {
    let profile = if dev { "dev" } else { "release" };
    let mut build = cargo(root);
    build.args(["build", "--quiet", "--workspace", "--bin", "soft-rdma", "--bin", OURS, "--profile", profile]);
    output(&mut build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let target = std::path::absolute(target).map_err(|error| error.to_string())?;
    let folder = target.join("xtask/thirdparty");
    make(&folder)?;
    let path = target.join(if dev { "debug" } else { "release" }).join("soft-rdma");
    Ok(Launcher::new(path, folder, target.join("thirdparty")))
}

/// Builds the programs of the workspace `thirdparty`: unoptimized, because they run for less time
/// than the optimizer would take.
fn build_crates(root: &Path, launcher: &Launcher) -> Result<(), String> {
    let mut build = cargo(&root.join("thirdparty"));
    build.args(["build", "--quiet", "--locked", NO_DEBUG, "--target-dir"]);
    output(build.arg(&launcher.crates))?;
    Ok(())
}

/// Runs a case and compares its end with the expected one.
fn examine(launcher: &Launcher, case: &'static Case) -> (Line, Option<Failed>) {
    let text = case.text();
    println!("{text}");
    let (ended, took) = launcher.run(case);
    let (result, failed) = match (&case.outcome, ended) {
        (Outcome::Passes | Outcome::Races(_), Ended::Passed) => ("passes".to_owned(), None),
        (Outcome::Passes | Outcome::Loses(_), Ended::Failed(why)) => (format!("FAILED: {why}"), Some((why, true))),
        (Outcome::Races(reason), Ended::Failed(why)) => {
            (format!("FAILED three times: {why} ({reason})"), Some((why, true)))
        }
        (Outcome::Lacks(reason), Ended::Failed(_)) => (format!("known gap: {reason}"), None),
        (Outcome::Lacks(_), Ended::Passed) => {
            ("PASSES, but is listed as a known gap".to_owned(), Some(("passes, a known gap".to_owned(), false)))
        }
        (Outcome::Loses(_), Ended::Passed) => ("reports an error".to_owned(), None),
        (_, Ended::Missing) => {
            let missing = format!("MISSING: install {}", case.package());
            (missing.clone(), Some((missing, false)))
        }
    };
    let failed = failed.map(|(why, may_repeat)| {
        let log = launcher.printed();
        let subject = if may_repeat { Subject::Program(case) } else { Subject::Settled };
        Failed { subject, name: text.clone(), error: first_error(&log).unwrap_or(why), log }
    });
    (Line { text, result, took }, failed)
}
