//! `cargo xtask thirdparty`: runs Debian's RDMA programs, programs over other Rust crates (the
//! workspace `thirdparty`), these crates' own tests and examples, and rdma-core's tests in Python
//! on the software device, through `soft-rdma`, and prints tables.

mod cases;
mod pyverbs;
mod registry;
mod run;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::system::{cargo, make, output};
use cases::{CASES, Case, Kind, OURS, Outcome};
use run::{Ended, Launcher};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only the command lines and tests whose names contain this text.
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
    /// What the programs have printed, if the case failed.
    failed: Option<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let launcher = build(&crate::root(), options.dev)?;
    let is_wanted = |case: &&Case| options.only.as_ref().is_none_or(|only| case.text().contains(only));
    let wanted: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
    if wanted.iter().any(|case| case.kind == Kind::Crate) {
        build_crates(&crate::root(), &launcher)?;
    }
    if wanted.iter().any(|case| case.kind.is_of_registry()) {
        registry::build(&crate::root(), &launcher)?;
    }
    let lines: Vec<Line> = wanted.iter().map(|case| examine(&launcher, case)).collect();
    print(&lines);
    let tested = pyverbs::run(&launcher, options.only.as_deref());
    if let (true, Ok(0), Some(only)) = (lines.is_empty(), &tested, &options.only) {
        let programs: BTreeSet<&str> = CASES.iter().map(|case| case.program).collect();
        let programs = programs.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("no test of pyverbs and no program matches {only:?}; programs: {programs}"));
    }
    let failures = failures(&lines);
    match failures.into_iter().chain(tested.err()).collect::<Vec<_>>() {
        failures if failures.is_empty() => Ok(()),
        failures => Err(format!("failed: {}", failures.join("; "))),
    }
}

/// Prints what each failed case has printed, last, where a shortened record of CI still holds it;
/// the result names them.
fn failures(lines: &[Line]) -> Option<String> {
    let mut names = Vec::new();
    for line in lines {
        if let Some(printed) = &line.failed {
            println!("\n---- {}: {}\n{printed}", line.text, line.result);
            names.push(line.text.as_str());
        }
    }
    (!names.is_empty()).then(|| format!("{} of {} programs: {}", names.len(), lines.len(), names.join(", ")))
}

fn print(lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    println!("\n{:>7}  {:<62}  result", "seconds", "program");
    for Line { text, result, took, .. } in lines {
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
    Ok(Launcher { path, folder, crates: target.join("thirdparty") })
}

/// Builds the programs of the workspace `thirdparty`.
fn build_crates(root: &Path, launcher: &Launcher) -> Result<(), String> {
    let mut build = cargo(&root.join("thirdparty"));
    build.args(["build", "--quiet", "--release", "--locked", "--target-dir"]);
    output(build.arg(&launcher.crates))?;
    Ok(())
}

/// Runs a case and compares its end with the expected one.
fn examine(launcher: &Launcher, case: &Case) -> Line {
    let text = case.text();
    println!("{text}");
    let (ended, took) = launcher.run(case);
    let (result, failed) = match (&case.outcome, ended) {
        (Outcome::Passes | Outcome::Races(_), Ended::Passed) => ("passes".to_owned(), false),
        (Outcome::Passes | Outcome::Loses(_), Ended::Failed(why)) => (format!("FAILED: {why}"), true),
        (Outcome::Races(reason), Ended::Failed(why)) => (format!("FAILED three times: {why} ({reason})"), true),
        (Outcome::Lacks(reason), Ended::Failed(_)) => (format!("known gap: {reason}"), false),
        (Outcome::Lacks(_), Ended::Passed) => ("PASSES, but is listed as a known gap".to_owned(), true),
        (Outcome::Loses(_), Ended::Passed) => ("reports an error".to_owned(), false),
        (_, Ended::Missing) => (format!("MISSING: install {}", case.package()), true),
    };
    let failed = failed.then(|| launcher.printed());
    Line { text, result, took, failed }
}
