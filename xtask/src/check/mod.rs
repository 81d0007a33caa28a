//! `cargo xtask check`: formatting, lint, clippy and unit tests of a change, in about a minute.
//!
//! Every cargo command selects the whole workspace and leaves it to cargo to build only what the
//! change reaches. Cargo unifies features over the selected packages: `-p rdma-verbs` alone has
//! neither `aio` nor `tokio`, so it would check other code, in artifacts of its own. With the whole
//! workspace, clippy shares its artifacts with `cargo clippy --workspace`, and the unit tests share
//! theirs with `cargo test`. For the same reason, clippy checks what depends on the change: `cargo
//! check` would compile each crate of the workspace a second time.

mod workspace;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::lint;
use crate::system::{cargo, metadata, output};
use workspace::{Package, Workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Commit since which files count as changed; by default, the commit where this branch left
    /// its upstream or main, else HEAD. Uncommitted and untracked files count as changed.
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let begin = Instant::now();
    let root = crate::root();
    let base = Base::find(&root, options.base.as_deref())?;
    let files = changed_files(&root, &base.commit)?;
    let workspace = Workspace::new(&metadata(&root, &["--no-deps"])?)?;
    let changed = workspace.changed(&files);
    let dependents = workspace.dependents(&changed);
    println!("{:<8} {} file(s) since {base}", "changed", files.len());
    println!("{:<8} changed: {}; dependents: {}", "crates", list(&changed), list(&dependents));

    // Each of the two runs on one core.
    thread::scope(|scope| {
        let lint = scope.spawn(lint::faults);
        cargo_step("fmt", "all crates", cargo(&root).args(["fmt", "--all", "--check"]))?;
        step("lint", "cargo xtask lint", || match lint.join().unwrap_or_else(|panic| resume_unwind(panic))? {
            faults if faults.is_empty() => Ok("all crates".to_owned()),
            faults => Err(faults.join("\n")),
        })
    })?;
    if !changed.is_empty() {
        let tests = UnitTests::build(&root, &workspace, &changed)?;
        // Many tests wait, and the two do not wait for each other's build.
        thread::scope(|scope| {
            let results = scope.spawn(|| tests.run(&root));
            let mut clippy = cargo(&root);
            clippy.args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
            cargo_step("clippy", "all targets of these crates, with default features", &mut clippy)?;
            step("test", &tests.again, || results.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
    }

    println!("{:<8}{:>6.1} s", "passed", begin.elapsed().as_secs_f64());
    println!(
        "{:<8} integration tests, doctests, benchmarks, other features, rustdoc, the oldest Rust, aarch64, loom, \
         sanitizers, other devices: .ci/run",
        "not run"
    );
    let existing: Vec<_> = files.iter().filter(|file| root.join(file).exists()).map(String::as_str).collect();
    for (command, file) in workspace.hints(&existing) {
        println!("{:<8} {command}   for {file}", "also");
    }
    Ok(())
}

/// The commit that the working tree is compared with.
#[derive(Debug)]
struct Base {
    commit: String,
    /// The branch or the revision whose common ancestor with HEAD the commit is.
    of: String,
}

impl Base {
    fn find(root: &Path, wanted: Option<&str>) -> Result<Self, String> {
        let ancestor = |of: &str| {
            let commit = git(root, &["merge-base", "HEAD", of])?;
            Ok(Self { commit, of: of.to_owned() })
        };
        if let Some(wanted) = wanted {
            return ancestor(wanted).map_err(|error: String| format!("no common ancestor with {wanted}: {error}"));
        }
        let defaults = ["@{upstream}", "main", "origin/main"];
        defaults.iter().find_map(|of| ancestor(of).ok()).map_or_else(|| ancestor("HEAD"), Ok)
    }
}

impl Display for Base {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let commit = self.commit.get(..10).unwrap_or(&self.commit);
        write!(formatter, "{commit}, the common ancestor with {}", self.of)
    }
}

/// The files that differ between the commit and the working tree, relative to `root`: a renamed
/// file by both names, and files that git neither tracks nor ignores.
fn changed_files(root: &Path, commit: &str) -> Result<BTreeSet<String>, String> {
    let tracked = git(root, &["diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--"])?;
    let untracked = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let names = tracked.split('\0').chain(untracked.split('\0'));
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut git = Command::new("git");
    // In a hook, variables name the repository of the hook, whatever the folder.
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        git.env_remove(variable);
    }
    output(git.current_dir(root).args(arguments))
}

/// The unit tests of the changed crates, as programs.
#[derive(Debug, Default)]
struct UnitTests<'a> {
    programs: Vec<(&'a Package, String)>,
    /// The command that builds and runs them.
    again: String,
}

impl<'a> UnitTests<'a> {
    /// Builds the unit tests of the workspace.
    fn build(root: &Path, workspace: &'a Workspace, changed: &BTreeSet<&str>) -> Result<Self, String> {
        let packages: Vec<_> = workspace.packages().filter(|package| changed.contains(&*package.name)).collect();
        if !packages.iter().any(|package| package.has_unit_tests()) {
            return Ok(Self::default());
        }
        let mut command = cargo(root);
        command.args(["test", "--workspace", "--lib", "--quiet"]);
        // `--lib` overrules `test = false` of a library.
        let untested = workspace.packages().filter(|package| package.has_untested_library());
        command.args(untested.flat_map(|package| ["--exclude", &*package.name]));
        // The unit tests of a package without a library are in its programs.
        command.args(packages.iter().flat_map(|package| &package.tested_programs).flat_map(|name| ["--bin", &**name]));
        let again = shown(&command);
        command.args(["--no-run", "--message-format=json-render-diagnostics"]);
        let mut messages = String::new();
        step("build", &shown(&command), || {
            messages = captured(&mut command)?;
            Ok("unit tests".to_owned())
        })?;
        let of_package = |package| test_programs(&messages, package).into_iter().map(move |program| (package, program));
        Ok(Self { programs: packages.into_iter().flat_map(of_package).collect(), again })
    }

    /// Runs the programs, and returns their counts of tests.
    fn run(&self, root: &Path) -> Result<String, String> {
        let results = self.programs.iter().map(|(package, program)| run_tests(root, package, program));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        Ok(if results.is_empty() { "no unit tests".to_owned() } else { results.join("\n         ") })
    }
}

/// The test programs of a package in the messages of `cargo test --no-run`.
fn test_programs(messages: &str, package: &Package) -> Vec<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["package_id"] == package.id && message["profile"]["test"] == true);
    tests.filter_map(|message| message["executable"].as_str().map(str::to_owned)).collect()
}

/// Runs a test program as cargo does, and returns its count of tests.
fn run_tests(root: &Path, package: &Package, program: &str) -> Result<String, String> {
    let folder = root.join(&package.folder);
    let mut tests = Command::new(program);
    // Some tests wait for seconds, in which others can run.
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    tests.args(["--quiet", &format!("--test-threads={threads}")]);
    tests.env("CARGO_MANIFEST_DIR", &folder).current_dir(folder);
    let text = captured(&mut tests)?;
    let result = text.lines().rev().find_map(|line| line.strip_prefix("test result: ok. "));
    let counts = result.and_then(|counts| counts.split("; 0 measured").next());
    Ok(format!("{}: {}", package.name, counts.ok_or_else(|| format!("no test result:\n{text}"))?))
}

/// Runs a command of cargo as a step.
fn cargo_step(name: &str, about: &str, command: &mut Command) -> Result<(), String> {
    step(name, &shown(command), || captured(command).map(|_| about.to_owned()))
}

/// Runs one step and prints a line with its time; after a failure, the text of the error and the
/// command that repeats the step.
fn step(name: &str, again: &str, work: impl FnOnce() -> Result<String, String>) -> Result<(), String> {
    print!("{name:<8}");
    // The name is progress for a reader, and no more than that.
    drop(io::stdout().flush());
    let begin = Instant::now();
    let result = work();
    let seconds = begin.elapsed().as_secs_f64();
    match result {
        Ok(about) => println!("{seconds:>6.1} s  {about}"),
        Err(text) => {
            println!("{seconds:>6.1} s  FAILED\n{}", text.trim_end());
            return Err(format!("{name} failed; to repeat it: {again}"));
        }
    }
    Ok(())
}

/// Runs a program, and returns what it prints on its standard output; after a failure, all that it
/// prints is the error.
fn captured(command: &mut Command) -> Result<String, String> {
    if io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    // The JSON messages of a build that failed tell nothing that its diagnostics do not.
    let lines = text.lines().filter(|line| !line.starts_with("{\"reason\":"));
    let text = lines.flat_map(|line| [line, "\n"]).collect::<String>();
    Err(format!("{text}{}{program}: {}", String::from_utf8_lossy(&output.stderr), output.status))
}

/// The command as a user types it.
fn shown(cargo: &Command) -> String {
    let arguments = cargo.get_args().map(OsStr::to_string_lossy).filter(|argument| argument != "--quiet");
    arguments.fold("cargo".to_owned(), |line, argument| line + " " + &argument)
}

/// The names, or `none`.
fn list(names: &BTreeSet<&str>) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().copied().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A repository whose branch `main` has one commit, with the files `kept`, `renamed` and
    /// `deleted`.
    fn repository() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "--quiet", "--initial-branch=main"]).unwrap();
        for (key, value) in [("user.name", "A"), ("user.email", "a@example.org"), ("commit.gpgSign", "false")] {
            git(root, &["config", key, value]).unwrap();
        }
        for name in ["kept", "renamed", "deleted"] {
            fs::write(root.join(name), name).unwrap();
        }
        commit(root);
        folder
    }

    fn commit(root: &Path) -> String {
        git(root, &["add", "--all"]).unwrap();
        git(root, &["commit", "--quiet", "--no-verify", "--message=A"]).unwrap();
        head(root)
    }

    fn head(root: &Path) -> String {
        git(root, &["rev-parse", "HEAD"]).unwrap()
    }

    fn base(root: &Path, wanted: Option<&str>) -> String {
        Base::find(root, wanted).unwrap().commit
    }

    #[test]
    fn the_base_is_where_a_branch_left_main_or_its_upstream() {
        let folder = repository();
        let root = folder.path();
        let first = head(root);
        assert_eq!(base(root, None), first);
        git(root, &["switch", "--quiet", "--create", "work"]).unwrap();
        fs::write(root.join("more"), "").unwrap();
        let second = commit(root);
        assert_eq!(base(root, None), first);
        git(root, &["switch", "--quiet", "--detach"]).unwrap();
        assert_eq!(base(root, None), first);
        git(root, &["switch", "--quiet", "--create", "later"]).unwrap();
        git(root, &["branch", "--quiet", "--set-upstream-to=work"]).unwrap();
        fs::write(root.join("last"), "").unwrap();
        let third = commit(root);
        assert_eq!(base(root, None), second);
        assert_eq!(base(root, Some("main")), first);
        assert!(Base::find(root, Some("nowhere")).unwrap_err().contains("nowhere"));
        // Neither an upstream nor a branch of that name.
        git(root, &["branch", "--quiet", "--unset-upstream"]).unwrap();
        git(root, &["branch", "--quiet", "--move", "main", "trunk"]).unwrap();
        assert_eq!(base(root, None), third);
    }

    #[test]
    fn changed_files_are_committed_uncommitted_untracked_renamed_and_deleted_ones() {
        let folder = repository();
        let root = folder.path();
        let first = head(root);
        assert_eq!(changed_files(root, &first).unwrap(), BTreeSet::new());
        fs::write(root.join("committed"), "").unwrap();
        fs::write(root.join(".gitignore"), "ignored\n").unwrap();
        git(root, &["mv", "renamed", "new name"]).unwrap();
        commit(root);
        fs::write(root.join("staged"), "").unwrap();
        git(root, &["add", "staged"]).unwrap();
        fs::remove_file(root.join("deleted")).unwrap();
        fs::create_dir(root.join("folder")).unwrap();
        for name in ["ignored", "folder/untracked"] {
            fs::write(root.join(name), "").unwrap();
        }
        let names = [".gitignore", "committed", "deleted", "folder/untracked", "new name", "renamed", "staged"];
        assert_eq!(changed_files(root, &first).unwrap(), names.map(str::to_owned).into());
    }

    #[test]
    fn a_failed_program_tells_all_that_it_prints() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo told; echo '{\"reason\":\"x\"}'; echo why >&2; exit 3"]);
        assert_eq!(captured(&mut shell).unwrap_err(), "told\nwhy\nsh: exit status: 3");
        assert_eq!(captured(Command::new("echo").arg("told")).unwrap(), "told\n");
    }
}
