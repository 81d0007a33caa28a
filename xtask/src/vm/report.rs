//! The results of a run, and the final table.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use super::plan::{self, Known};
use crate::flaky::{self, Failure, List, Summary};

/// Words by which the kernel reports its own faults.
const COMPLAINTS: [&str; 5] = ["BUG: ", "Oops", "WARNING: ", "general protection fault", "Kernel panic"];

/// The outcome of a run on one device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    passed: Vec<String>,
    /// The cases that failed, and passed at the second run.
    recovered: Vec<Failed>,
    /// Name and reason of each skipped item.
    skipped: Vec<(String, String)>,
    failed: Vec<Failed>,
    /// Failures that are no case's: of the guest, and messages of its kernel. Nothing excuses them.
    pub(crate) errors: Vec<String>,
    /// Name and reason of each known fault, which was not run.
    pub(crate) excluded: Vec<(String, String)>,
    /// Number of items that were planned but not run.
    missing: usize,
    pub(crate) seconds: u64,
    /// Seconds during which the guest ran.
    pub(crate) guest_seconds: u64,
    /// The folder of logs, if the run failed.
    pub(crate) folder: Option<PathBuf>,
}

/// A case that failed.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    name: String,
    /// A word and the exit status.
    end: String,
    /// The file of the log, in the run's folder.
    file: String,
    log: String,
    /// The reason why there was no second run, or how the second run failed.
    again: String,
}

impl Failed {
    /// The first error, in one line.
    fn error(&self) -> String {
        flaky::first_error(&self.log).unwrap_or_else(|| format!("last line: {}", flaky::last_line(&self.log)))
    }
}

impl Report {
    /// Reads `out/results`, whose lines have a word, a status, seconds and a name.
    pub(crate) fn read(&mut self, out: &Path, planned: usize) {
        let text = fs::read_to_string(out.join("results")).unwrap_or_default();
        self.parse(&text, planned, |file| {
            let log = fs::read(out.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&log).into_owned()
        });
    }

    fn parse(&mut self, results: &str, planned: usize, log: impl Fn(&str) -> String) {
        let mut seen = 0;
        for line in results.lines().filter(|line| *line != "end") {
            let mut fields = line.splitn(4, '\t');
            let mut field = || fields.next().unwrap_or_default();
            let (word, status, _seconds, name) = (field(), field(), field(), field().to_owned());
            seen += 1;
            let file = format!("log/{seen}");
            match word {
                "ok" => self.passed.push(name),
                "skipped" => self.skipped.push((name, reason(&log(&file)))),
                _ => {
                    let (end, log, again) = (format!("{word}, status {status}"), log(&file), String::new());
                    self.failed.push(Failed { name, end, file, log, again });
                }
            }
        }
        self.missing = planned.saturating_sub(seen);
    }

    /// Counts a fault message of the kernel as a failure, unless it is known.
    pub(crate) fn complaints(&mut self, console: &str, known: &Known) {
        for line in complaints(console) {
            match known.complaint(line) {
                Some(reason) => self.excluded.push((format!("kernel: {line}"), reason.to_owned())),
                None => self.errors.push(format!("kernel: {line}")),
            }
        }
    }

    /// Whether something failed, at whichever run.
    pub(crate) fn has_failed(&self) -> bool {
        !(self.failed.is_empty() && self.recovered.is_empty() && self.errors.is_empty() && self.missing == 0)
    }

    /// The names of the failed cases that run once more. None do if the run fails in any case: by
    /// an error that is no case's, or by the leftovers of all cases.
    pub(crate) fn second_run(&mut self, scope: &str, list: &List) -> Vec<String> {
        let names: Vec<&str> = self.failed.iter().map(|failed| &*failed.name).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let again = if !self.errors.is_empty() || self.missing > 0 || names.iter().any(|name| plan::judges_all(name)) {
            Err("no second run: the whole run failed".to_owned())
        } else {
            list.second_run(scope, &names).map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let (names, reason) = match again {
            Ok(names) => (names, flaky::NO_MORE.to_owned()),
            Err(reason) => (Vec::new(), reason),
        };
        self.failed
            .iter_mut()
            .filter(|failed| !names.contains(&failed.name))
            .for_each(|failed| failed.again.clone_from(&reason));
        names
    }

    /// Adds the second run of failed cases, whose folder is `folder` in that of the first run.
    pub(crate) fn add_second(&mut self, second: Self, folder: &str) {
        let (recovered, mut failed): (Vec<_>, Vec<_>) =
            self.failed.drain(..).partition(|failed| second.passed.contains(&failed.name));
        for failed in failed.iter_mut().filter(|failed| failed.again.is_empty()) {
            failed.again = match second.failed.iter().find(|again| again.name == failed.name) {
                Some(Failed { end, file, .. }) => format!("second run: {end}, {folder}/{file}"),
                None => "second run: neither passed nor failed".to_owned(),
            };
        }
        self.failed = failed;
        self.recovered.extend(recovered);
        self.errors.extend(second.errors);
        self.excluded.extend(second.excluded);
        self.seconds += second.seconds;
        self.guest_seconds += second.guest_seconds;
    }

    /// The failures as the command's last lines name them.
    fn summarize(&self, device: &str, kernel: &str, summary: &mut Summary) {
        let failure = |name: &str, error| Failure { run: format!("{device} {kernel}"), name: name.into(), error };
        for recovered in &self.recovered {
            summary.recovered(device, failure(&recovered.name, recovered.error()));
        }
        for failed in &self.failed {
            let again = if failed.again.is_empty() { String::new() } else { format!("; {}", failed.again) };
            summary.failed(failure(&failed.name, format!("{} ({}{again})", failed.error(), failed.end)));
        }
        for error in &self.errors {
            summary.failed(failure("the run", error.lines().next().unwrap_or_default().to_owned()));
        }
        if self.missing > 0 {
            summary.failed(failure("the run", format!("{} were not run", self.missing)));
        }
        if !self.has_failed() && self.passed.is_empty() {
            summary.failed(failure("the run", "nothing was tested".into()));
        }
        self.folder.iter().for_each(|folder| summary.folder(folder.clone()));
    }
}

/// The reason of a skip in a log: the text after `SKIP` and the test's own name.
fn reason(log: &str) -> String {
    let text = log.lines().find_map(|line| line.split_once("SKIP ")).map_or("?", |(_, text)| text);
    let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    match text.split_once(": ") {
        Some((name, reason)) if is_name(name) => reason.to_owned(),
        _ => text.to_owned(),
    }
}

/// The lines in which the kernel reports a fault.
pub(crate) fn complaints(console: &str) -> impl Iterator<Item = &str> {
    console.lines().map(str::trim).filter(|line| COMPLAINTS.iter().any(|word| line.contains(word)))
}

/// The table of results, one row for each device and kernel.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<(String, String, Report)>);

impl Table {
    pub(crate) fn push(&mut self, device: String, kernel: String, report: Report) {
        self.0.push((device, kernel, report));
    }

    /// Prints each failure with its log, below the name of its device and kernel.
    pub(crate) fn print_failures(&self) {
        for (device, kernel, report) in &self.0 {
            for Failed { name, end, file, log, .. } in report.recovered.iter().chain(&report.failed) {
                println!("\n---- {device} {kernel}: {name} ({end}), {file}\n{}", log.trim());
            }
            for error in &report.errors {
                println!("\n---- {device} {kernel}: {error}");
            }
        }
    }

    /// The last lines of the command. It fails if an item failed or was not run, or if nothing was
    /// tested on some device.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        self.0.iter().for_each(|(device, kernel, report)| report.summarize(device, kernel, &mut summary));
        summary
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device   kernel    passed  2nd run  skipped  failed  excluded  not run  seconds  in guest")?;
        for (device, kernel, report) in &self.0 {
            let Report {
                passed, recovered, skipped, failed, errors, excluded, missing, seconds, guest_seconds, ..
            } = report;
            let (passed, recovered, skipped) = (passed.len(), recovered.len(), skipped.len());
            let (failed, excluded) = (failed.len() + errors.len(), excluded.len());
            write!(
                f,
                "{device:<8} {kernel:<8} {passed:>7} {recovered:>8} {skipped:>8} {failed:>7} {excluded:>9} {missing:>8}"
            )?;
            writeln!(f, " {seconds:>8} {guest_seconds:>9}")?;
        }
        for (device, kernel, report) in &self.0 {
            for (word, list) in [("skipped", &report.skipped), ("excluded", &report.excluded)] {
                let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
                for (name, reason) in list {
                    reasons.entry(reason).or_default().push(name);
                }
                for (reason, names) in reasons {
                    writeln!(f, "{word} on {device} {kernel}: {}: {reason} ({})", names.len(), names.join(", "))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(results: &str, planned: usize, log: impl Fn(&str) -> String) -> Report {
        let mut report = Report::default();
        report.parse(results, planned, log);
        report
    }

    fn table(reports: impl IntoIterator<Item = Report>) -> Table {
        let mut table = Table::default();
        reports.into_iter().for_each(|report| table.push("rxe".into(), "6.1".into(), report));
        table
    }

    fn verdict(report: Report) -> Result<(), String> {
        table([report]).summary().verdict()
    }

    #[test]
    fn results_are_counted_with_their_reasons() {
        let results = "ok\t0\t0.1\ta\nskipped\t0\t0.1\tb\nFAILED\t101\t1.0\tc\nTIMEOUT\t124\t9.0\td\nend\n";
        let log = |file: &str| match file {
            "log/2" => "test b ... SKIP b: no atomics\nok".to_owned(),
            "log/3" => "thread 'c' panicked at tests/c.rs:1:2:\nwhy\n".to_owned(),
            _ => "step 1\nstep 2\n".to_owned(),
        };
        let report = parsed(results, 5, log);
        assert_eq!((report.passed.len(), report.failed.len(), report.missing), (1, 2, 1));
        assert_eq!(report.skipped, [("b".to_owned(), "no atomics".to_owned())]);
        let table = table([report]);
        let expected = "3 failed:\n  rxe 6.1: c: tests/c.rs:1:2: why (FAILED, status 101)\n  \
                        rxe 6.1: d: last line: step 2 (TIMEOUT, status 124)\n  rxe 6.1: the run: 1 were not run";
        assert_eq!(table.summary().verdict(), Err(expected.into()));
    }

    fn twice(second: &str) -> Report {
        let mut first = parsed("ok\t0\t1\ta\nFAILED\t1\t1\tb\nFAILED\t1\t1\tc\nend\n", 3, |_| "an error".into());
        assert_eq!(first.second_run("rxe", &List::default()), ["b", "c"]);
        first.add_second(parsed(second, 2, |_| "a later error".into()), "again");
        first
    }

    #[test]
    fn a_case_that_passes_at_its_second_run_is_no_failure() {
        let report = twice("ok\t0\t1\tb\nok\t0\t1\tc\nend\n");
        assert!(report.has_failed() && report.failed.is_empty() && report.recovered.len() == 2);
        assert_eq!(verdict(report), Ok(()));
        let report = twice("ok\t0\t1\tb\nFAILED\t1\t1\tc\nend\n");
        let expected = "rxe 6.1: c: an error (FAILED, status 1; second run: FAILED, status 1, again/log/2)";
        assert_eq!(verdict(report), Err(format!("1 failed:\n  {expected}")));
        let report = twice("skipped\t0\t1\tb\nend\n");
        assert!(verdict(report).unwrap_err().starts_with("2 failed:"), "neither a skip nor a guest's end is a pass");
    }

    #[test]
    fn a_fault_of_the_kernel_is_never_excused() {
        let mut report = twice("ok\t0\t1\tb\nok\t0\t1\tc\nend\n");
        let mut second = parsed("", 0, |_| String::new());
        second.complaints("[ 1.0] BUG: bad page", &Known::default());
        report.add_second(second, "again");
        assert_eq!(verdict(report), Err("1 failed:\n  rxe 6.1: the run: kernel: [ 1.0] BUG: bad page".into()));
        let mut report = parsed("FAILED\t1\t1\tb\nend\n", 1, |_| String::new());
        report.complaints("[ 1.0] BUG: bad page", &Known::default());
        assert!(report.second_run("rxe", &List::default()).is_empty());
    }

    #[test]
    fn what_judges_the_whole_run_gets_no_second_run() {
        let results = "FAILED\t1\t1\tb\nFAILED\t1\t1\tleftovers::none\nend\n";
        let mut report = parsed(results, 2, |_| String::new());
        assert!(report.second_run("rxe", &List::default()).is_empty());
        assert!(report.failed.iter().all(|failed| failed.again.contains("the whole run failed")));
        let mut report = parsed("FAILED\t1\t1\tb\n", 2, |_| String::new());
        assert!(report.second_run("rxe", &List::default()).is_empty(), "the guest stopped");
    }

    #[test]
    fn skips_are_counted_by_reason() {
        let results = "ok\t0\t0.1\tx\nskipped\t0\t0.1\ta\nskipped\t0\t0.1\tb\nend\n";
        let table = table([parsed(results, 3, |_| "SKIP no atomics: none".into())]);
        assert!(table.to_string().contains("skipped on rxe 6.1: 2: no atomics: none (a, b)"), "{table}");
        assert_eq!(table.summary().verdict(), Ok(()));
    }

    #[test]
    fn only_skips_are_a_failure_on_every_device() {
        let skips = parsed("skipped\t0\t0.1\tb\nend\n", 1, |_| String::new());
        let good = parsed("ok\t0\t0.1\ta\nend\n", 1, |_| String::new());
        let expected = "1 failed:\n  rxe 6.1: the run: nothing was tested";
        assert_eq!(table([good, skips]).summary().verdict(), Err(expected.into()));
    }

    #[test]
    fn a_device_that_is_absent_is_a_failure() {
        // The guest's script ended before the first test.
        let report = parsed("", 12, |_| String::new());
        assert_eq!(verdict(report), Err("1 failed:\n  rxe 6.1: the run: 12 were not run".into()));
    }

    #[test]
    fn a_complaint_of_the_kernel_is_a_failure() {
        let console =
            "[ 1.0] fine\n[    2.5] WARNING: CPU: 0 PID: 1 at drivers/infiniband/sw/rxe/rxe_resp.c:12 f+0x1\n";
        let mut report = parsed("ok\t0\t0.1\ta\nend\n", 1, |_| String::new());
        report.complaints(console, &Known::default());
        assert!(report.errors[0].contains("rxe_resp.c:12"));
        assert!(verdict(report).is_err_and(|why| why.contains("the run: kernel: [    2.5] WARNING")));
    }
}
