//! Failures that do not repeat: the rule for the second run of a failed case, the committed list of
//! cases that passed at their second run, and the last lines that a command prints.
//!
//! A case of `cargo xtask vm` or `cargo xtask thirdparty` that fails runs once more after the
//! others, without their load. If it then passes, the command succeeds and prints a line for
//! `tests/flaky.tsv`. A case that has two lines there gets no second run, so nobody lives with a
//! test that fails now and then.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::system::{at, make, output, read, remove};

/// The list of cases that passed at their second run.
const LIST: &str = "tests/flaky.tsv";
/// The parts of the plan that a case of the list can be of: the devices of `cargo xtask vm`, and
/// `cargo xtask thirdparty`.
const SCOPES: [&str; 6] = ["soft", "hosts", "rxe", "siw", "wire", THIRDPARTY];
/// The scope of the cases of `cargo xtask thirdparty`.
pub(crate) const THIRDPARTY: &str = "thirdparty";
/// Most failed cases of a run that run again: more of them have a cause that repeats.
const MOST_FAILED: usize = 5;
/// Lines of the list with which a case gets no second run.
const MOST_LINES: usize = 2;
/// The reason why a case with so many lines gets no second run.
pub(crate) const NO_MORE: &str = "no second run: 2 lines in tests/flaky.tsv";
/// Folders of failed runs that are kept.
const KEPT: usize = 10;
/// Most characters of an error in a line.
const LONGEST: usize = 200;

/// The committed list.
#[derive(Debug, Default)]
pub(crate) struct List(Vec<Entry>);

/// A line of the list: once, this case passed at its second run.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The scope and the name, separated by a space.
    case: String,
    date: String,
    error: String,
}

impl List {
    /// Reads the list of the workspace.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        Self::parse(&read(&root.join(LIST))?)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(Entry::parse).collect::<Result<_, _>>().map(Self)
    }

    /// The names of those failed cases of a scope that run once more; or the reason why none does.
    pub(crate) fn second_run<'a>(&self, scope: &str, failed: &[&'a str]) -> Result<Vec<&'a str>, String> {
        if failed.len() > MOST_FAILED {
            return Err(format!("no second run: more than {MOST_FAILED} cases failed"));
        }
        let names: Vec<&str> = failed.iter().copied().filter(|name| self.lines(scope, name) < MOST_LINES).collect();
        if names.is_empty() { Err(NO_MORE.into()) } else { Ok(names) }
    }

    /// Fails if the list has a case of the scope that is not among its cases.
    pub(crate) fn check<'a>(&self, scope: &str, cases: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        let cases: BTreeSet<&str> = cases.into_iter().collect();
        match self.names(scope).find(|name| !cases.contains(name)) {
            Some(gone) => Err(format!("{LIST}: {scope} has no case {gone}")),
            None => Ok(()),
        }
    }

    /// The names of the list's cases of a scope.
    pub(crate) fn names(&self, scope: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(move |entry| entry.case.strip_prefix(scope)?.strip_prefix(' '))
    }

    fn lines(&self, scope: &str, name: &str) -> usize {
        self.0.iter().filter(|entry| entry.case == case(scope, name)).count()
    }
}

impl Entry {
    fn parse(line: &str) -> Result<Self, String> {
        let mistake = |what| format!("{LIST}: {line:?}: {what}");
        let [case, date, error] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(mistake("a line has a case, a date and an error, separated by tabs"));
        };
        let is_date = date.len() == 10
            && date
                .bytes()
                .enumerate()
                .all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() });
        match case.split_once(' ') {
            Some((scope, _)) if !SCOPES.contains(&scope) => Err(mistake("unknown scope")),
            None => Err(mistake("a case is a scope and a name")),
            _ if !is_date => Err(mistake("a date is YYYY-MM-DD")),
            _ if error.is_empty() => Err(mistake("no error")),
            Some(_) => Ok(Self { case: case.into(), date: date.into(), error: error.into() }),
        }
    }
}

/// The line that is added to the list.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}", self.case, self.date, self.error)
    }
}

/// A failed case as the last lines of a command name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The part of the plan: a device and a kernel, or a command.
    pub(crate) run: String,
    pub(crate) name: String,
    /// The first error, one line.
    pub(crate) error: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.run, self.name, self.error)
    }
}

/// The last lines of a command: what passed at the second run, and what failed.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Scope and failure of each case that passed at its second run.
    recovered: Vec<(String, Failure)>,
    failed: Vec<Failure>,
    /// The folders with the logs of the runs in which a case failed.
    folders: Vec<PathBuf>,
}

impl Summary {
    pub(crate) fn recovered(&mut self, scope: &str, failure: Failure) {
        self.recovered.push((scope.to_owned(), failure));
    }

    pub(crate) fn failed(&mut self, failure: Failure) {
        self.failed.push(failure);
    }

    /// Adds a folder of logs.
    pub(crate) fn folder(&mut self, folder: PathBuf) {
        self.folders.push(folder);
    }

    /// Prints the cases that passed at the second run, and the folders of logs. The result names
    /// each failed case with its first error.
    pub(crate) fn finish(&self) -> Result<(), String> {
        print!("{}", self.report(&now("%F")?));
        self.verdict()
    }

    fn report(&self, date: &str) -> String {
        let folders = self.folders.iter().map(|folder| format!("logs of the failures: {}\n", folder.display()));
        let mut text: String = folders.collect();
        if self.recovered.is_empty() {
            return text;
        }
        text += "\npassed at the second run:\n";
        text.extend(self.recovered.iter().map(|(_, failure)| format!("  {failure}\n")));
        text += &format!("to be added to {LIST} (a case, the date, the first error):\n");
        for (scope, Failure { name, error, .. }) in &self.recovered {
            let entry = Entry { case: case(scope, name), date: date.into(), error: error.clone() };
            text += &format!("{entry}\n");
        }
        text
    }

    pub(crate) fn verdict(&self) -> Result<(), String> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let lines: String = self.failed.iter().map(|failure| format!("\n  {failure}")).collect();
        Err(format!("{} failed:{lines}", self.failed.len()))
    }
}

/// The list's name of a case.
fn case(scope: &str, name: &str) -> String {
    format!("{scope} {name}")
}

/// The first error in a test's or a program's output, as one line: a panic with its place and
/// message, the exception of a Python traceback, or the first line that speaks of an error.
pub(crate) fn first_error(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let found = lines.iter().enumerate().find_map(|(at, line)| panic(line, &lines[at + 1..]));
    let found = found.or_else(|| {
        let traceback = lines.iter().position(|line| line.starts_with("Traceback "))?;
        let exception = lines[traceback + 1..].iter().find(|line| !line.starts_with(' ') && !line.is_empty());
        exception.map(|line| (*line).to_owned())
    });
    let is_error = |line: &&&str| {
        let line = line.to_lowercase();
        ["error", "fail", "cannot ", "couldn't ", "unable to "].iter().any(|word| line.contains(word))
    };
    let found = found.or_else(|| lines.iter().find(is_error).map(|line| (*line).to_owned()));
    found.map(|error| one_line(&error))
}

/// The place and the message of a panic that begins in this line.
fn panic(line: &str, rest: &[&str]) -> Option<String> {
    let (_, place) = line.split_once(" panicked at ")?;
    let mut words = vec![place];
    let (message, rest) = rest.split_first()?;
    words.push(message);
    // The two sides of an assertion stand in lines of their own.
    words.extend(
        rest.iter()
            .map(|line| line.trim())
            .take_while(|line| ["left:", "right:"].iter().any(|side| line.starts_with(side))),
    );
    Some(words.join(" "))
}

/// The last line of an output that is not empty.
pub(crate) fn last_line(log: &str) -> String {
    one_line(log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output"))
}

/// The text without tabs and other control characters, and not too long.
fn one_line(text: &str) -> String {
    let text: String = text.trim().chars().map(|symbol| if symbol.is_control() { ' ' } else { symbol }).collect();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Moves the folder of a failed run to a folder of such runs, under a name with the time, and
/// removes the oldest ones there. Returns the new path.
pub(crate) fn keep(folder: &Path, all: &Path, name: &str) -> Result<PathBuf, String> {
    let to = all.join(format!("{}-{name}", now("%Y%m%dT%H%M%S")?));
    make(all)?;
    fs::rename(folder, &to).map_err(at(folder))?;
    let entries = fs::read_dir(all).map_err(at(all))?;
    let mut kept: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // The names begin with the time.
    kept.sort();
    kept.iter().take(kept.len().saturating_sub(KEPT)).try_for_each(|old| remove(old))?;
    Ok(to)
}

/// The date or time (UTC) in a format of date(1).
fn now(format: &str) -> Result<String, String> {
    output(Command::new("date").args(["-u", &format!("+{format}")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# rule\n\nrxe uc::a\t2026-01-02\twhy\nrxe uc::a\t2026-02-03\twhy\nsiw uc::b\t2026-02-03\tx\n";

    fn failure(name: &str) -> Failure {
        Failure { run: "rxe 6.1".into(), name: name.into(), error: "why".into() }
    }

    #[test]
    fn the_committed_list_can_be_read() {
        List::read(&crate::root()).unwrap();
    }

    #[test]
    fn a_case_with_two_lines_gets_no_second_run() {
        let list = List::parse(TWO).unwrap();
        assert_eq!(list.second_run("rxe", &["uc::a", "uc::b"]).unwrap(), ["uc::b"]);
        assert_eq!(list.second_run("siw", &["uc::a", "uc::b"]).unwrap(), ["uc::a", "uc::b"], "on another device");
        assert!(list.second_run("rxe", &["uc::a"]).unwrap_err().contains("2 lines in tests/flaky.tsv"));
    }

    #[test]
    fn many_failures_are_no_accident() {
        let names = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(List::default().second_run("rxe", &names[..5]).unwrap(), names[..5]);
        assert!(List::default().second_run("rxe", &names).unwrap_err().contains("more than 5"));
    }

    #[test]
    fn a_line_whose_case_is_gone_is_a_mistake() {
        let list = List::parse(TWO).unwrap();
        assert_eq!(list.check("rxe", ["uc::a", "rc::c"]), Ok(()));
        assert_eq!(list.check("siw", ["uc::a"]), Err("tests/flaky.tsv: siw has no case uc::b".into()));
        assert_eq!(list.check("wire", []), Ok(()));
    }

    #[test]
    fn a_line_that_is_malformed_is_a_mistake() {
        let mistake = |line: &str| List::parse(line).unwrap_err();
        assert!(mistake("rxe uc::a 2026-01-02 why").contains("separated by tabs"));
        assert!(mistake("rxe uc::a\t2026-01-02\twhy\tmore").contains("separated by tabs"));
        assert!(mistake("uc::a\t2026-01-02\twhy").contains("a scope and a name"));
        assert!(mistake("mlx5 uc::a\t2026-01-02\twhy").contains("unknown scope"));
        assert!(mistake("rxe uc::a\t2 Jan 2026\twhy").contains("YYYY-MM-DD"));
        assert!(mistake("rxe uc::a\t2026-01-02\t").contains("no error"));
    }

    #[test]
    fn the_printed_line_is_one_of_the_list() {
        let mut summary = Summary::default();
        summary.recovered("rxe", failure("uc::a"));
        summary.folder("/kept".into());
        let text = summary.report("2026-03-04");
        assert!(text.starts_with("logs of the failures: /kept\n\npassed at the second run:\n  rxe 6.1: uc::a: why\n"));
        let line = text.lines().last().unwrap();
        assert_eq!(line, "rxe uc::a\t2026-03-04\twhy");
        assert_eq!(List::parse(line).unwrap().0, [Entry::parse(line).unwrap()]);
        assert_eq!(summary.verdict(), Ok(()), "a case that passed at the second run is no failure");
    }

    #[test]
    fn the_last_lines_name_each_failure_with_its_first_error() {
        let mut summary = Summary::default();
        assert_eq!((summary.report("2026-03-04"), summary.verdict()), (String::new(), Ok(())));
        summary.failed(failure("uc::a"));
        summary.failed(failure("uc::b"));
        assert_eq!(summary.verdict(), Err("2 failed:\n  rxe 6.1: uc::a: why\n  rxe 6.1: uc::b: why".into()));
    }

    #[test]
    fn the_first_error_of_a_test_is_its_panic() {
        let log = "running 1 test\nan error that was expected\n\nthread 'a' (7) panicked at tests/it/uc.rs:17:5:\n\
                   assertion `left == right` failed: 7 bytes\n  left: 1\n right: 2\nnote: run with `RUST_BACKTRACE=1`\n\
                   thread 'b' panicked at x.rs:1:1:\nlater\n";
        let expected = "tests/it/uc.rs:17:5: assertion `left == right` failed: 7 bytes left: 1 right: 2";
        assert_eq!(first_error(log).unwrap(), expected);
        let log = "thread 'a' panicked at src/lib.rs:9:5:\nno completion\tin time\nstack backtrace:\n";
        assert_eq!(first_error(log).unwrap(), "src/lib.rs:9:5: no completion in time");
    }

    #[test]
    fn the_first_error_of_a_program_is_its_exception_or_message() {
        let log =
            "test_a ... ERROR\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    f()\nE: Errno: 22\n";
        assert_eq!(first_error(log).unwrap(), "E: Errno: 22");
        assert_eq!(first_error("one\nCouldn't post send: -1\nclient failed\n").unwrap(), "Couldn't post send: -1");
        assert_eq!(first_error("one\ntwo\n"), None);
        assert_eq!((last_line("one\ntwo\n\n"), last_line("")), ("two".into(), "no output".into()));
        assert_eq!(first_error(&format!("error: {}", "é".repeat(1000))).unwrap().chars().count(), LONGEST + 3);
    }

    #[test]
    fn the_last_failed_runs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (run, all) = (folder.path().join("run"), folder.path().join("failed"));
        for old in 10..30 {
            make(&all.join(format!("200001{old}T000000-rxe"))).unwrap();
        }
        make(&run).unwrap();
        fs::write(run.join("log"), "why").unwrap();
        let kept = keep(&run, &all, "rxe-6.1").unwrap();
        assert!(kept.file_name().unwrap().to_str().unwrap().ends_with("-rxe-6.1") && !run.exists());
        assert_eq!(fs::read_to_string(kept.join("log")).unwrap(), "why");
        let count = fs::read_dir(&all).unwrap().count();
        assert!(count == KEPT && !all.join("20000120T000000-rxe").exists() && all.join("20000121T000000-rxe").exists());
    }
}
