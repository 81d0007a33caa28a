//! rdma-core's own tests in Python on the software device: those of Debian bookworm, which this
//! machine's Python runs, and those of Debian sid, which bring a Python. Sid may be broken at any
//! time: if its tests cannot be fetched or listed, they are skipped, and the report says so.
//!
//! The tests of a module run in one process. If it dies or hangs in a test, that test has failed,
//! and another process runs those after it.

mod package;
mod skips;

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use super::again::{Failed, Subject};
use super::run::Launcher;
use crate::system::output;
use package::Package;

/// Seconds of a process that runs tests, and the seconds that each of them adds.
const LIMIT: usize = 60;
const LIMIT_OF_TEST: usize = 10;

/// A version of the tests.
#[derive(Debug)]
struct Suite {
    /// What the names of its tests begin with.
    prefix: &'static str,
    /// The suite of Debian.
    debian: &'static str,
    /// Whether its modules are built for this machine's Python.
    of_machine: bool,
    /// Whether the tests are skipped if they cannot be fetched or listed.
    is_optional: bool,
    /// The version with these ends.
    version: u32,
    /// Tests that pass at least.
    bar: usize,
}

const SUITES: [Suite; 2] = [
    Suite { prefix: "", debian: "bookworm", of_machine: true, is_optional: false, version: 44, bar: 115 },
    Suite { prefix: "newest ", debian: "sid", of_machine: false, is_optional: true, version: 65, bar: 135 },
];

/// The tests, and Python to run them.
pub(super) struct Tests<'a> {
    launcher: &'a Launcher,
    versions: Vec<Version>,
    /// The reason why a suite is skipped.
    skipped: Vec<(&'static Suite, String)>,
}

/// The tests of a suite.
struct Version {
    suite: &'static Suite,
    package: Package,
    /// The names of all tests, without the suite's prefix.
    names: Vec<String>,
}

/// The ends of the tests of all versions.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Those of each version, which stands before them.
    versions: Vec<(u32, Ends)>,
    /// The reason why a suite is skipped.
    skipped: Vec<String>,
    /// The number of suites that have run in their known version.
    known: usize,
    /// Faults of a whole version.
    faults: Vec<String>,
    /// Each test that failed.
    pub(super) failed: Vec<Failed>,
}

/// The ends of the tests of a version.
#[derive(Debug, Default)]
struct Ends {
    passed: usize,
    /// The number of skipped tests by what they say, and those that are known to fail by name.
    skipped: BTreeMap<String, usize>,
    failed: Vec<Failed>,
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
    /// No tests.
    pub(super) fn none(launcher: &'a Launcher) -> Self {
        Self { launcher, versions: Vec::new(), skipped: Vec::new() }
    }

    /// Fetches the tests.
    pub(super) fn fetch(launcher: &'a Launcher) -> Result<Self, String> {
        let mut tests = Self::none(launcher);
        for suite in &SUITES {
            let folder = launcher.folder.join("pyverbs").join(suite.debian);
            tests.add(suite, Version::fetch(launcher, suite, &folder))?;
        }
        Ok(tests)
    }

    /// Adds the tests of a suite.
    fn add(&mut self, suite: &'static Suite, fetched: Result<Version, String>) -> Result<(), String> {
        match fetched {
            Ok(version) => self.versions.push(version),
            Err(why) if suite.is_optional => self.skipped.push((suite, why)),
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// The names of all tests.
    pub(super) fn names(&self) -> Vec<String> {
        let names = |version: &Version| {
            let prefix = version.suite.prefix;
            version.names.iter().map(move |name| format!("{prefix}{name}")).collect::<Vec<_>>()
        };
        self.versions.iter().flat_map(names).collect()
    }

    /// The reasons why suites are skipped.
    pub(super) fn skipped(&self) -> impl Iterator<Item = String> {
        self.skipped.iter().map(|(suite, why)| format!("pyverbs of {}: skipped: {why}", suite.debian))
    }

    /// Whether the test with this name may be gone: nobody has looked at the version that its suite
    /// has now, or the suite is skipped.
    pub(super) fn may_lack(&self, name: &str) -> bool {
        let is_known = |version: &Version| version.package.version == version.suite.version;
        let mut known = self.versions.iter().filter(|version| is_known(version)).map(|version| version.suite);
        let suite = SUITES.iter().find(|suite| !of_suite(suite, &[name]).is_empty());
        suite.is_some_and(|suite| known.all(|known| known.debian != suite.debian))
    }

    /// Runs tests, the modules of a version in two threads.
    pub(super) fn run(&self, names: &[&str]) -> Report {
        let mut report = Report { skipped: self.skipped().collect(), ..Report::default() };
        for Version { suite, package, .. } in &self.versions {
            let ends = self.run_modules(package, &of_suite(suite, names));
            report.add(suite, package.version, ends);
        }
        report
    }

    fn run_modules(&self, package: &Package, names: &[&str]) -> Ends {
        let (queue, ends) = (Mutex::new(modules(names).into_iter()), Mutex::new(Ends::default()));
        let work = || {
            while let Some(names) = { queue.lock().expect("no test panics").next() } {
                self.run_module(package, &names, |name, end, log| {
                    ends.lock().expect("no test panics").add(name, end, log);
                });
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(work);
            scope.spawn(work);
        });
        ends.into_inner().expect("no test panics")
    }

    /// Runs the tests of a module.
    fn run_module(&self, package: &Package, names: &[&str], mut tell: impl FnMut(&str, End, &str)) {
        let mut left = names.to_vec();
        while !left.is_empty() {
            let (lines, log) = self.lines(package, &left);
            let (ends, others) = worst(&lines, &left);
            for (name, end) in ends {
                tell(name, end, &log);
                left.retain(|left| *left != name);
            }
            // The process has run its tests in this order.
            if !left.is_empty() {
                let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
                let why = others.unwrap_or_else(|| format!("the process has ended: {last}"));
                tell(left.remove(0), End::Failed(why), &log);
            }
        }
    }

    /// Runs tests in one process; returns its standard output and its standard error.
    fn lines(&self, package: &Package, names: &[&str]) -> (String, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ended = python(self.launcher, package, names)
            .and_then(|mut python| python.output().map_err(|error| error.to_string()));
        match ended {
            Ok(ended) => (text(&ended.stdout), format!("{}\n{}", text(&ended.stderr), ended.status)),
            Err(error) => (String::new(), error),
        }
    }

    /// Runs a test once more, by itself: whether it passes, or ends as the table says, and what it
    /// prints.
    pub(super) fn run_again(&self, name: &str) -> (bool, String) {
        let mut last = (false, String::new());
        for Version { suite, package, .. } in &self.versions {
            if let [name] = of_suite(suite, &[name])[..] {
                self.run_module(package, &[name], |name, end, log| {
                    let mut ends = Ends::default();
                    ends.add(name, end, log);
                    last = (ends.failed.is_empty(), log.to_owned());
                });
            }
        }
        last
    }
}

impl Version {
    /// Fetches the tests of a suite, unless they are in `folder`.
    fn fetch(launcher: &Launcher, suite: &'static Suite, folder: &Path) -> Result<Self, String> {
        let package = Package::fetch(folder, suite.debian, suite.of_machine, suite.version)?;
        let names = output(&mut python(launcher, &package, &[])?)?;
        Ok(Self { suite, package, names: names.lines().map(str::to_owned).collect() })
    }
}

/// Python with the program that runs tests.
fn python(launcher: &Launcher, package: &Package, names: &[&str]) -> Result<Command, String> {
    let mut command = launcher.command(&["--sysfs"], "timeout");
    let limit = LIMIT + LIMIT_OF_TEST * names.len();
    command.arg(limit.to_string()).args(package.python()?).arg("tests/lines.py").args(names);
    package.prepare(&mut command);
    Ok(command)
}

/// Whether a text is written as the names of tests are.
pub(super) fn is_named(text: &str) -> bool {
    let prefixes = SUITES.iter().map(|suite| suite.prefix.trim_end());
    ["tests."].into_iter().chain(prefixes.filter(|prefix| !prefix.is_empty())).any(|part| text.contains(part))
}

/// The names of a suite's tests among others, without its prefix.
fn of_suite<'a>(suite: &Suite, names: &[&'a str]) -> Vec<&'a str> {
    let names = names.iter().filter_map(|name| name.strip_prefix(suite.prefix));
    names.filter(|name| name.starts_with("tests.")).collect()
}

/// The names by module, which is the second of the words between points, in the order of the names.
fn modules<'a>(names: &[&'a str]) -> Vec<Vec<&'a str>> {
    let module = |name: &str| name.split('.').nth(1).unwrap_or_default().to_owned();
    let mut modules: Vec<Vec<&str>> = Vec::new();
    for &name in names {
        match modules.last_mut() {
            Some(last) if last.first().is_some_and(|first| module(first) == module(name)) => last.push(name),
            _ => modules.push(vec![name]),
        }
    }
    modules
}

/// The ends of tests in what `lines.py` prints.
fn ends(text: &str) -> impl Iterator<Item = (&str, End)> {
    let mut lines = text.lines().map(|line| line.splitn(3, '\t').collect::<Vec<_>>());
    iter::from_fn(move || {
        lines.find_map(|line| match line[..] {
            ["passed", name, _] => Some((name, End::Passed)),
            ["skipped", name, why] => Some((name, End::Skipped(why.to_owned()))),
            ["failed", name, why] => Some((name, End::Failed(why.to_owned()))),
            _ => None,
        })
    })
}

/// The worst end of each of these tests in what `lines.py` prints, in its order: a test that fails
/// may fail once more when it cleans up. Then the first end that is of no test, such as that of a
/// class or of a module that cannot be imported.
fn worst<'a>(text: &'a str, names: &[&str]) -> (Vec<(&'a str, End)>, Option<String>) {
    let (mut all, mut others): (Vec<(&str, End)>, _) = (Vec::new(), None);
    for (name, end) in ends(text) {
        if !names.contains(&name) {
            if let End::Skipped(why) | End::Failed(why) = end {
                others.get_or_insert_with(|| format!("{name}: {why}"));
            }
            continue;
        }
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) if end.rank() > known.rank() => *known = end,
            Some(_) => (),
            None => all.push((name, end)),
        }
    }
    (all, others)
}

impl End {
    /// How bad the end is.
    fn rank(&self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Skipped(_) => 1,
            Self::Failed(_) => 2,
        }
    }
}

impl Ends {
    fn add(&mut self, name: &str, end: End, log: &str) {
        let mut fail = |error| {
            self.failed.push(Failed { subject: Subject::Test, name: name.to_owned(), error, log: log.to_owned() });
        };
        let is_known = skips::is_known_to_fail(name);
        match end {
            End::Passed if is_known => fail("passes, but skips.tsv has it as a test that fails".to_owned()),
            End::Passed => self.passed += 1,
            End::Failed(_) if is_known => *self.skipped.entry(name.to_owned()).or_default() += 1,
            End::Skipped(why) if skips::cause(&why).is_none() => fail(format!("skips.tsv has no cause for: {why}")),
            End::Skipped(why) => *self.skipped.entry(why).or_default() += 1,
            End::Failed(error) => fail(error),
        }
    }
}

impl Report {
    /// Adds the ends of a version. A version that is newer than the known one may have tests that
    /// nobody has looked at: their failures are printed, and do not count.
    fn add(&mut self, suite: &Suite, version: u32, mut ends: Ends) {
        for failed in &mut ends.failed {
            failed.name = format!("{}{}", suite.prefix, failed.name);
        }
        if version <= suite.version {
            let ran = ends.passed + ends.failed.len();
            if ran < suite.bar {
                self.faults.push(format!("{ran} tests of pyverbs {version} were run, fewer than {}", suite.bar));
            }
            self.failed.append(&mut ends.failed);
        }
        self.known += usize::from(version == suite.version);
        self.versions.push((version, ends));
    }

    /// Prints the results.
    pub(super) fn print(&self) {
        for (version, Ends { passed, skipped, failed }) in &self.versions {
            let skips: usize = skipped.values().sum();
            println!("\npyverbs {version}: {passed} passed, {skips} skipped");
            for (why, count) in skipped {
                let reason = skips::cause(why).map_or("", |cause| cause.reason);
                println!("{count:>7}  skipped, or known to fail: {why}: {reason}");
            }
            for Failed { name, error, .. } in failed {
                println!("         failed, but rdma-core {version} is newer than the known one: {name}: {error}");
            }
        }
        for skipped in &self.skipped {
            println!("\n{skipped}");
        }
        for Failed { name, error, .. } in &self.failed {
            println!("         FAILED: {name}: {error}");
        }
    }

    /// Fails if too few tests were run for a run of all tests, or if the table has a cause that is
    /// no test's. The table is that of the known versions: others may lack its causes.
    pub(super) fn is_whole(&self) -> Result<(), String> {
        match self.faults.first() {
            Some(fault) => Err(fault.clone()),
            None if self.known < SUITES.len() => Ok(()),
            None => skips::are_used(self.versions.iter().flat_map(|(_, ends)| ends.skipped.keys())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_tests_are_told_apart() {
        let text = "passed\ttests.a.A.a\t\nskipped\ttests.a.A.b\tNo XRC\nnoise\nfailed\ttests.a.A.c\tError: 22\tmore\n";
        let expected = [
            ("tests.a.A.a", End::Passed),
            ("tests.a.A.b", End::Skipped("No XRC".into())),
            ("tests.a.A.c", End::Failed("Error: 22\tmore".into())),
        ];
        assert_eq!(ends(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_tests_of_a_module_run_together() {
        let names = ["tests.a.A.x", "tests.a.B.x", "newest tests.a.A.x", "tests.b.A.x", "ib_send_lat"];
        assert_eq!(of_suite(&SUITES[1], &names), ["tests.a.A.x"]);
        let of_machine = of_suite(&SUITES[0], &names);
        assert_eq!(modules(&of_machine), [vec!["tests.a.A.x", "tests.a.B.x"], vec!["tests.b.A.x"]]);
    }

    #[test]
    fn too_few_tests_are_a_failure() {
        let suite = &SUITES[0];
        let report = |passed, version| {
            let mut ends = Ends { passed, ..Ends::default() };
            ends.add("tests.a", End::Failed("why".into()), "log");
            let mut report = Report::default();
            report.add(suite, version, ends);
            report
        };
        assert_eq!(report(suite.bar - 2, suite.version).faults.len(), 1);
        let enough = report(suite.bar - 1, suite.version);
        assert!(enough.faults.is_empty(), "the failure is one by itself");
        assert_eq!((&*enough.failed[0].error, &*enough.failed[0].log), ("why", "log"));
        let newer = report(0, 999);
        assert!(newer.faults.is_empty() && newer.failed.is_empty(), "nobody has looked at this version");
        assert_eq!(report(0, 9).faults.len(), 1, "an older version");
    }

    #[test]
    fn causes_are_those_of_the_known_versions() {
        let mut report = Report::default();
        let ends = |suite: &Suite| Ends { passed: suite.bar, ..Ends::default() };
        report.add(&SUITES[0], SUITES[0].version, ends(&SUITES[0]));
        report.is_whole().unwrap();
        report.add(&SUITES[1], SUITES[1].version + 1, ends(&SUITES[1]));
        report.is_whole().unwrap();
        report.add(&SUITES[1], SUITES[1].version, ends(&SUITES[1]));
        assert!(report.is_whole().is_err(), "the tests of all known versions skip for no cause");
    }

    #[test]
    fn a_suite_that_cannot_be_fetched_is_skipped_if_it_is_optional() {
        let launcher = Launcher::new("soft-rdma".into(), "folder".into(), "crates".into());
        let mut tests = Tests::none(&launcher);
        assert!(tests.add(&SUITES[0], Err("no mirror".into())).is_err());
        tests.add(&SUITES[1], Err("no mirror".into())).unwrap();
        let report = tests.run(&[]);
        assert_eq!(report.skipped, ["pyverbs of sid: skipped: no mirror"]);
        assert!(tests.names().is_empty() && tests.may_lack("newest tests.a.A.a") && !tests.may_lack("ib_send_lat"));
        report.is_whole().unwrap();
    }

    #[test]
    fn a_text_with_which_names_begin_is_that_of_tests() {
        assert!(["tests.test_mr", "newest", "newest tests.a"].into_iter().all(is_named));
        assert!(!["", "ib_send_lat", "srq"].into_iter().any(is_named));
    }

    #[test]
    fn a_test_ends_as_its_worst_line_says() {
        let text = "skipped\ta\twhy\nfailed\ta\tfirst\nfailed\ta\tlast\npassed\tb\t\n\
                    skipped\tsetUpClass (c)\tno device\nfailed\tsetUpClass (d)\tmore\n";
        let (ends, others) = worst(text, &["a", "b", "c.c"]);
        assert_eq!(ends, [("a", End::Failed("first".into())), ("b", End::Passed)]);
        assert_eq!(others.as_deref(), Some("setUpClass (c): no device"));
    }

    #[test]
    fn an_end_that_the_table_does_not_have_is_a_failure() {
        let mut ends = Ends::default();
        ends.add("tests.a", End::Skipped("nobody knows".into()), "log");
        assert_eq!(ends.failed.len(), 1);
        let known = skips::causes().next().unwrap();
        ends.add("tests.b", End::Skipped("Create XRCD is not supported".into()), "log");
        assert!(!known.reason.is_empty() && ends.skipped.len() == 1 && ends.failed.len() == 1);
        let name = "tests.test_device.DMTest.test_multi_process_alloc_dm";
        ends.add(name, End::Failed("why".into()), "log");
        assert_eq!((ends.skipped.len(), ends.failed.len()), (2, 1));
        ends.add(name, End::Passed, "log");
        assert_eq!(ends.failed.len(), 2, "the table is wrong");
    }
}
