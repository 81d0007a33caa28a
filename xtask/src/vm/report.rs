//! The results of a run, and the final table.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use super::plan::Known;

/// Words by which the kernel reports its own faults.
const COMPLAINTS: [&str; 5] = ["BUG: ", "Oops", "WARNING: ", "general protection fault", "Kernel panic"];

/// The outcome of a run on one device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    passed: usize,
    /// Name and reason of each skipped item.
    skipped: Vec<(String, String)>,
    pub(crate) failed: Vec<String>,
    /// Name and reason of each known fault, which was not run.
    pub(crate) excluded: Vec<(String, String)>,
    /// Number of items that were planned but not run.
    missing: usize,
    pub(crate) seconds: u64,
    /// Seconds during which the guest ran.
    pub(crate) guest_seconds: u64,
}

impl Report {
    /// Reads `out/results`, whose lines have a word, a status, seconds and a name.
    pub(crate) fn read(&mut self, out: &Path, planned: usize) {
        let text = fs::read_to_string(out.join("results")).unwrap_or_default();
        self.parse(&text, planned, |index| {
            let log = fs::read(out.join("log").join((index + 1).to_string())).unwrap_or_default();
            String::from_utf8_lossy(&log).into_owned()
        });
    }

    fn parse(&mut self, results: &str, planned: usize, log: impl Fn(usize) -> String) {
        let mut seen = 0;
        for (index, line) in results.lines().filter(|line| *line != "end").enumerate() {
            let mut fields = line.splitn(4, '\t');
            let mut field = || fields.next().unwrap_or_default();
            let (word, status, _seconds, name) = (field(), field(), field(), field());
            seen += 1;
            match word {
                "ok" => self.passed += 1,
                "skipped" => self.skipped.push((name.to_owned(), reason(&log(index)))),
                _ => self.failed.push(format!("{name} ({word}, status {status})\n{}", log(index).trim())),
            }
        }
        self.missing = planned.saturating_sub(seen);
    }

    /// Counts a fault message of the kernel as a failure, unless it is known.
    pub(crate) fn complaints(&mut self, console: &str, known: &Known) {
        for line in complaints(console) {
            match known.complaint(line) {
                Some(reason) => self.excluded.push((format!("kernel: {line}"), reason.to_owned())),
                None => self.failed.push(format!("kernel: {line}")),
            }
        }
    }

    fn verdict(&self) -> Result<(), String> {
        let names: Vec<_> = self.failed.iter().filter_map(|failed| failed.lines().next()).collect();
        let names = names.join(", ");
        match (self.failed.len(), self.missing, self.passed) {
            (0, 0, 0) => Err("nothing was tested".into()),
            (0, 0, _) => Ok(()),
            (0, missing, _) => Err(format!("{missing} were not run")),
            (failed, 0, _) => Err(format!("{failed} failed: {names}")),
            (failed, missing, _) => Err(format!("{failed} failed, {missing} were not run: {names}")),
        }
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
            for failed in &report.failed {
                println!("\n---- {device} {kernel}: {failed}");
            }
        }
    }

    /// Fails if an item failed or was not run, or if nothing was tested on some device.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let verdict = |(device, kernel, report): &(String, String, Report)| {
            report.verdict().err().map(|error| format!("{device} {kernel}: {error}"))
        };
        let errors: Vec<_> = self.0.iter().filter_map(verdict).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device   kernel    passed  skipped  failed  excluded  not run  seconds  in guest")?;
        for (device, kernel, report) in &self.0 {
            let Report { passed, skipped, failed, excluded, missing, seconds, guest_seconds } = report;
            let (skipped, failed, excluded) = (skipped.len(), failed.len(), excluded.len());
            write!(f, "{device:<8} {kernel:<8} {passed:>7} {skipped:>8} {failed:>7} {excluded:>9} {missing:>8}")?;
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

    fn parsed(results: &str, planned: usize, log: impl Fn(usize) -> String) -> Report {
        let mut report = Report::default();
        report.parse(results, planned, log);
        report
    }

    fn table(reports: impl IntoIterator<Item = Report>) -> Table {
        let mut table = Table::default();
        reports.into_iter().for_each(|report| table.push("rxe".into(), "6.1".into(), report));
        table
    }

    #[test]
    fn results_are_counted_with_their_reasons() {
        let results = "ok\t0\t0.1\ta\nskipped\t0\t0.1\tb\nFAILED\t101\t1.0\tc\nTIMEOUT\t124\t9.0\td\nend\n";
        let log = |index| if index == 1 { "test b ... SKIP b: no atomics\nok".to_owned() } else { "why".to_owned() };
        let report = parsed(results, 5, log);
        assert_eq!((report.passed, report.failed.len(), report.missing), (1, 2, 1));
        assert_eq!(report.skipped, [("b".to_owned(), "no atomics".to_owned())]);
        assert!(report.failed[0].starts_with("c (FAILED, status 101)\nwhy"));
        assert_eq!(
            report.verdict(),
            Err("2 failed, 1 were not run: c (FAILED, status 101), d (TIMEOUT, status 124)".into())
        );
    }

    #[test]
    fn skips_are_counted_by_reason() {
        let results = "ok\t0\t0.1\tx\nskipped\t0\t0.1\ta\nskipped\t0\t0.1\tb\nend\n";
        let table = table([parsed(results, 3, |_| "SKIP no atomics: none".into())]);
        assert!(table.to_string().contains("skipped on rxe 6.1: 2: no atomics: none (a, b)"), "{table}");
        assert_eq!(table.verdict(), Ok(()));
    }

    #[test]
    fn only_skips_are_a_failure_on_every_device() {
        let skips = || parsed("skipped\t0\t0.1\tb\nend\n", 1, |_| String::new());
        assert_eq!(skips().verdict(), Err("nothing was tested".into()));
        let good = parsed("ok\t0\t0.1\ta\nend\n", 1, |_| String::new());
        assert_eq!(table([good, skips()]).verdict(), Err("rxe 6.1: nothing was tested".into()));
    }

    #[test]
    fn a_device_that_is_absent_is_a_failure() {
        // The guest's script ended before the first test.
        assert_eq!(parsed("", 12, |_| String::new()).verdict(), Err("12 were not run".into()));
    }

    #[test]
    fn a_complaint_of_the_kernel_is_a_failure() {
        let console =
            "[ 1.0] fine\n[    2.5] WARNING: CPU: 0 PID: 1 at drivers/infiniband/sw/rxe/rxe_resp.c:12 f+0x1\n";
        let mut report = parsed("ok\t0\t0.1\ta\nend\n", 1, |_| String::new());
        report.complaints(console, &Known::default());
        assert!(report.failed[0].contains("rxe_resp.c:12"));
        assert!(report.verdict().is_err_and(|why| why.starts_with("1 failed: kernel: [    2.5] WARNING")));
    }
}
