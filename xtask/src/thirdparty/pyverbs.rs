//! rdma-core's own tests in Python, each in a process on the software device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::again::{Failed, Subject};
use super::run::Launcher;
use crate::apt::{self, Apt};
use crate::system::{at, list, make, output, remove};

/// The suite whose Python the package's modules are built for.
const SUITE: &str = "bookworm";
const PACKAGE: &str = "python3-pyverbs";
const PYTHON: &str = "/usr/bin/python3";
/// Tests of one vendor's hardware, or of memory that a GPU's driver shares, are left out.
const OF_VENDORS: [&str; 3] = ["mlx5", "efa", "cuda"];
/// Tests of the connection manager, which use one port: they run one after another.
const OF_MANAGER: &str = "tests.test_rdmacm.";
/// Tests that pass at least.
const BAR: usize = 100;
/// Seconds of one test.
const LIMIT: &str = "60";

/// The tests, and Python to run them.
pub(super) struct Tests<'a> {
    launcher: &'a Launcher,
    folder: PathBuf,
}

/// The ends of all tests.
#[derive(Debug, Default)]
pub(super) struct Report {
    passed: usize,
    /// The number of skipped tests by cause.
    skipped: BTreeMap<String, usize>,
    /// Each test that failed.
    pub(super) failed: Vec<Failed>,
}

/// The end of a test.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Passed,
    Skipped(String),
    /// The error.
    Failed(String),
}

impl<'a> Tests<'a> {
    /// Fetches the tests.
    pub(super) fn fetch(launcher: &'a Launcher) -> Result<Self, String> {
        let folder = launcher.folder.join("pyverbs");
        fetch(&folder)?;
        Ok(Self { launcher, folder })
    }

    /// The names of all tests.
    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        let names = output(&mut self.python(&["--list-tests"]))?;
        Ok(names.lines().filter(|name| name.starts_with("tests.")).map(str::to_owned).collect())
    }

    fn python(&self, arguments: &[&str]) -> Command {
        let mut command = self.launcher.command(&["--sysfs"], "timeout");
        command.args([LIMIT, PYTHON, "tests/run_tests.py"]).args(arguments).current_dir(&self.folder);
        command.env("PYTHONPATH", self.folder.join("root/usr/lib/python3/dist-packages"));
        command
    }

    /// Runs tests in two threads.
    pub(super) fn run(&self, names: &[&str]) -> Report {
        let (of_manager, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.starts_with(OF_MANAGER));
        let (queue, report) = (Mutex::new(others.into_iter()), Mutex::new(Report::default()));
        let test = |name: &str| {
            let (ended, log) = self.test(name);
            report.lock().expect("no test panics").add(name, ended, log);
        };
        let work = || {
            while let Some(name) = { queue.lock().expect("no test panics").next() } {
                test(name);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                of_manager.iter().for_each(|name| test(name));
                work();
            });
            scope.spawn(work);
        });
        report.into_inner().expect("no test panics")
    }

    /// Runs a test once more, by itself: whether it passes, and what it prints.
    pub(super) fn run_again(&self, name: &str) -> (bool, String) {
        let (end, log) = self.test(name);
        (end == End::Passed, log)
    }

    /// Runs a test; returns its end and what it has printed.
    fn test(&self, name: &str) -> (End, String) {
        match self.python(&["--dev", "soft0", "-v", name]).output() {
            Ok(ended) => {
                let log = String::from_utf8_lossy(&ended.stderr).into_owned();
                (end(ended.status.success(), &log), log)
            }
            Err(error) => (End::Failed(error.to_string()), String::new()),
        }
    }
}

/// Fetches the package, and unpacks its tests.
fn fetch(folder: &Path) -> Result<(), String> {
    let (packages, root, tests) = (folder.join("packages"), folder.join("root"), folder.join("tests"));
    if list(&packages, "deb").is_ok_and(|packages| !packages.is_empty()) && tests.exists() {
        return Ok(());
    }
    Apt::new(&folder.join("apt"), &[SUITE])?.download([PACKAGE], &packages)?;
    apt::unpack_all(&packages, &root)?;
    // An interrupted fetch leaves no folder that looks complete.
    let new = folder.join("tests.new");
    remove(&new)?;
    make(&new)?;
    let all = root.join("usr/share/doc/rdma-core/tests");
    let mut files: Vec<PathBuf> = list(&all, "py")?;
    files.extend(list(&all, "gz")?);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if OF_VENDORS.iter().any(|vendor| name.starts_with(&format!("test_{vendor}"))) {
            continue;
        }
        let to = new.join(name.trim_end_matches(".gz"));
        let text = if name.ends_with(".gz") {
            output(Command::new("gzip").arg("-dc").arg(&file))?
        } else {
            fs::read_to_string(&file).map_err(at(&file))?
        };
        fs::write(&to, text).map_err(at(&to))?;
    }
    remove(&tests)?;
    fs::rename(&new, &tests).map_err(at(&tests))
}

/// Reads the end of a test in what Python's `unittest` prints. A process that then crashes or hangs
/// has failed.
fn end(is_success: bool, text: &str) -> End {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    let reason = || text.lines().find_map(|line| line.split_once(" ... skipped ")).map_or("no reason", |(_, why)| why);
    match last {
        "OK" if is_success => End::Passed,
        "OK (skipped=1)" if is_success => End::Skipped(reason().trim_matches(['\'', '"']).to_owned()),
        _ => {
            let is_error = |line: &&str| line.contains("Error") || line.contains(" got: ");
            End::Failed(text.lines().rfind(is_error).unwrap_or(last).to_owned())
        }
    }
}

impl Report {
    fn add(&mut self, name: &str, end: End, log: String) {
        match end {
            End::Passed => self.passed += 1,
            End::Skipped(why) => *self.skipped.entry(why).or_default() += 1,
            End::Failed(error) => {
                self.failed.push(Failed { subject: Subject::Test, name: name.to_owned(), error, log });
            }
        }
    }

    /// Prints the results.
    pub(super) fn print(&self) {
        let Self { passed, skipped, failed } = self;
        let skips: usize = skipped.values().sum();
        println!("\npyverbs: {passed} passed, {skips} skipped, {} failed", failed.len());
        for (why, count) in skipped {
            println!("{count:>7}  skipped: {why}");
        }
        for Failed { name, error, .. } in failed {
            println!("         FAILED: {name}: {error}");
        }
    }

    /// Fails if too few tests were run for a run of all tests.
    pub(super) fn are_enough(&self) -> Result<(), String> {
        match self.passed + self.failed.len() {
            ran if ran < BAR => Err(format!("{ran} tests of pyverbs were run, fewer than {BAR}")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_tests_are_told_apart() {
        let ran = "\n------\nRan 1 test in 0.017s\n\n";
        assert_eq!(end(true, &format!("test_a (tests.A.test_a) ... ok\n{ran}OK\n")), End::Passed);
        let skipped = format!("test_a (tests.A.test_a) ... skipped 'No XRC'\n{ran}OK (skipped=1)\n");
        assert_eq!(end(true, &skipped), End::Skipped("No XRC".into()));
        let failed = format!("test_a ... ERROR\nPyverbsError: Errno: 22\n{ran}FAILED (errors=1)\n");
        assert_eq!(end(false, &failed), End::Failed("PyverbsError: Errno: 22".into()));
        assert_eq!(end(false, &format!("{ran}OK\n")), End::Failed("OK".into()), "a crash after the test");
        assert_eq!(end(false, ""), End::Failed("no output".into()));
    }

    #[test]
    fn too_few_tests_are_a_failure() {
        let mut report = Report::default();
        (1..BAR).for_each(|_| report.add("a", End::Passed, String::new()));
        report.add("b", End::Skipped("why".into()), String::new());
        assert!(report.are_enough().is_err());
        report.add("c", End::Failed("why".into()), "log".into());
        assert!(report.are_enough().is_ok(), "the failure is one by itself");
        assert_eq!((&*report.failed[0].error, &*report.failed[0].log), ("why", "log"));
    }
}
