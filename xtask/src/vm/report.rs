//! What the guest says of each test, and the table at the end.

use std::{fs, path::Path};

/// The outcome of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    passed: usize,
    skipped: Vec<String>,
    failed: Vec<String>,
    /// Known faults, which were not run.
    pub(crate) excluded: Vec<String>,
    /// Planned, and not run.
    missing: usize,
}

impl Report {
    /// Reads `out/results`, in which each line is a word, a status, seconds and a name; prints what failed.
    pub(crate) fn read(out: &Path, planned: usize) -> Self {
        let text = fs::read_to_string(out.join("results")).unwrap_or_default();
        let report = Self::parse(&text, planned, |index| {
            let log = fs::read(out.join("log").join((index + 1).to_string())).unwrap_or_default();
            String::from_utf8_lossy(&log).into_owned()
        });
        for failed in &report.failed {
            println!("\n---- {failed}");
        }
        report
    }

    fn parse(results: &str, planned: usize, log: impl Fn(usize) -> String) -> Self {
        let mut report = Self::default();
        let mut seen = 0;
        for (index, line) in results.lines().filter(|line| *line != "end").enumerate() {
            let mut fields = line.splitn(4, '\t');
            let mut field = || fields.next().unwrap_or_default();
            let (word, status, _seconds, name) = (field(), field(), field(), field());
            seen += 1;
            match word {
                "ok" => report.passed += 1,
                "skipped" => {
                    let log = log(index);
                    let reason = log.lines().find_map(|line| line.split_once("SKIP ")).map(|(_, reason)| reason);
                    report.skipped.push(format!("{name}: {}", reason.unwrap_or("?")));
                }
                _ => report.failed.push(format!("{name} ({word}, status {status})\n{}", log(index).trim())),
            }
        }
        report.missing = planned.saturating_sub(seen);
        report
    }

    /// Prints the table. An error if something failed, or if nothing was tested.
    pub(crate) fn conclude(&self, device: &str, kernel: &str, guest: Result<(), String>) -> Result<(), String> {
        println!();
        for skipped in &self.skipped {
            println!("skipped: {skipped}");
        }
        for excluded in &self.excluded {
            println!("excluded: {excluded}");
        }
        println!(
            "{:<8} {:<8} {:>7} {:>8} {:>7} {:>9} {:>8}",
            "device", "kernel", "passed", "skipped", "failed", "excluded", "not run"
        );
        println!(
            "{device:<8} {kernel:<8} {:>7} {:>8} {:>7} {:>9} {:>8}",
            self.passed,
            self.skipped.len(),
            self.failed.len(),
            self.excluded.len(),
            self.missing
        );
        guest?;
        match (self.failed.len(), self.missing, self.passed) {
            (0, 0, 0) => Err("nothing was tested".into()),
            (0, 0, _) => Ok(()),
            (failed, 0, _) => Err(format!("{failed} failed")),
            (failed, missing, _) => Err(format!("{failed} failed, {missing} were not run")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_with_their_reasons() {
        let results = "ok\t0\t0.1\ta\nskipped\t0\t0.1\tb\nFAILED\t101\t1.0\tc\nTIMEOUT\t124\t9.0\td\nend\n";
        let log = |index| if index == 1 { "test b ... SKIP b: no atomics\nok".to_owned() } else { "why".to_owned() };
        let report = Report::parse(results, 5, log);
        assert_eq!((report.passed, report.failed.len(), report.missing), (1, 2, 1));
        assert_eq!(report.skipped, ["b: b: no atomics"]);
        assert!(report.failed[0].starts_with("c (FAILED, status 101)\nwhy"));
        assert!(report.conclude("rxe", "6.1", Ok(())).is_err());
    }

    #[test]
    fn only_skips_are_a_failure() {
        let report = Report::parse("skipped\t0\t0.1\tb\nend\n", 1, |_| String::new());
        assert_eq!(report.conclude("rxe", "6.1", Ok(())), Err("nothing was tested".into()));
    }

    #[test]
    fn a_guest_that_died_is_a_failure() {
        let report = Report::parse("ok\t0\t0.1\ta\n", 1, |_| String::new());
        assert!(report.conclude("rxe", "6.1", Err("gone".into())).is_err());
        assert!(report.conclude("rxe", "6.1", Ok(())).is_ok());
    }
}
