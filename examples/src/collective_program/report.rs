//! The report of a run: nccl-tests' table, JSON and comma-separated values.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::nccl_tests::{self, RankDevice};
use super::options::{Args, SizeStep};
use super::plot;
use crate::Failure;
use crate::failure::is_launched;
use crate::output::Output;
use crate::progress::Progress;
use crate::table::{self, CSV_HEAD, CollectiveRow, Totals};

/// The report of rank 0. The other ranks keep the totals only.
#[derive(Debug)]
pub(super) struct Report {
    name: &'static str,
    /// Whether this rank prints.
    is_first: bool,
    is_json_printed: bool,
    json: Option<Output>,
    csv: Option<Output>,
    plot: Option<Output>,
    /// Names and reports of earlier runs.
    earlier: Vec<(String, Value)>,
    /// The rows, if a file needs them at the end: a run may have no end.
    rows: Vec<CollectiveRow>,
    totals: Totals,
    progress: Progress,
    done: usize,
}

impl Report {
    /// Opens the files of the report of a run of `steps` rows.
    pub(super) fn new(name: &'static str, args: &Args, is_first: bool, steps: usize) -> Result<Self, Failure> {
        // Before the files are created: one of them may replace an earlier report.
        let read = |path: &PathBuf| Ok((format!("{}:", stem(path)), plot::read(path)?));
        let earlier = args.plot_with.iter().filter(|_| is_first).map(read).collect::<Result<_, Failure>>()?;
        let create = |path: Option<&Path>| path.filter(|_| is_first).map(Output::create).transpose();
        let json = if is_first { args.json.create()? } else { None };
        let mut csv = create(args.csv.as_deref())?;
        let plot = create(args.plot.as_deref())?;
        if let Some(csv) = &mut csv {
            csv.line(CSV_HEAD)?;
        }
        let progress = Progress::new(if is_first { steps } else { 0 });
        let rows = Vec::new();
        Ok(Self {
            name,
            is_first,
            is_json_printed: args.json.is_printed(),
            json,
            csv,
            plot,
            earlier,
            rows,
            totals: Totals::default(),
            progress,
            done: 0,
        })
    }

    /// Whether this rank prints the table.
    fn prints_table(&self) -> bool {
        self.is_first && !self.is_json_printed
    }

    /// Prints what precedes the table.
    pub(super) fn heading(&self, args: &Args, devices: &[RankDevice], notice: &str) -> Result<(), Failure> {
        if !self.prints_table() {
            return Ok(());
        }
        let mut out = io::stdout();
        let Args { min, max, warmup, check, agg_iters, placement, .. } = args;
        let (ranks, threads) = (devices.len(), placement.threads());
        // Each process that another launcher has started is a rank.
        let gpus = if is_launched() { ranks / threads } else { 1 };
        let iters = args.iters.map_or_else(|| "auto".to_owned(), |n| n.to_string());
        let step = match args.step() {
            SizeStep::Bytes(step) => format!("{}(bytes)", step.0),
            SizeStep::Factor(factor) => format!("{factor}(factor)"),
        };
        writeln!(out, "# Collective test starting: {}", self.name)?;
        writeln!(
            out,
            "# nThread {threads} nGpus {gpus} minBytes {} maxBytes {} step: {step} warmup iters: {warmup} iters: {iters} \
             agg iters: {agg_iters} validation: {check} graph: 0 unalign: 0",
            min.0, max.0
        )?;
        let blocking = match args.blocking {
            0 => None,
            1 => Some("wait and barrier after each inner iteration (-m)"),
            2 => Some("wait after each inner iteration (-m), no barrier"),
            _ => Some("wait and barrier after each outer iteration (-n); time excludes barrier"),
        };
        if let Some(blocking) = blocking {
            writeln!(out, "# Blocking Enabled: {blocking}")?;
        }
        writeln!(out, "# {ranks} ranks, arrivals: {notice}")?;
        writeln!(out, "#")?;
        nccl_tests::list_devices(&mut out, devices)?;
        table::collective_head(&mut out)?;
        Ok(())
    }

    /// Shows what is being measured.
    pub(super) fn step(&mut self, what: &str) {
        if self.is_first {
            self.progress.step(what, self.done);
        }
        self.done += 1;
    }

    /// Runs `print` with the progress line hidden.
    pub(super) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.progress.print(print)
    }

    /// Adds a row.
    pub(super) fn row(&mut self, row: CollectiveRow) -> Result<(), Failure> {
        if self.prints_table() {
            self.progress.print(|| table::collective_row(&mut io::stdout(), &row))?;
        }
        if let Some(csv) = &mut self.csv {
            csv.line(&table::csv_row(&row))?;
        }
        if self.json.is_some() || self.plot.is_some() {
            self.rows.push(row.clone());
        }
        self.totals.add(row);
        Ok(())
    }

    /// Ends the report, with facts about the job for JSON.
    ///
    /// # Errors
    /// If there are wrong values, or the report cannot be written.
    pub(super) fn conclude(mut self, facts: Value) -> Result<(), Failure> {
        drop(self.progress);
        if self.is_first {
            let mut report = facts;
            report["results"] = json!(self.rows);
            if let Some(file) = &mut self.json {
                file.line(&report.to_string())?;
            }
            if let Some(file) = &mut self.plot {
                let own = if self.earlier.is_empty() { "" } else { "this run:" };
                let earlier = self.earlier.iter().map(|(name, report)| (name.clone(), report));
                let reports: Vec<(String, &Value)> = earlier.chain([(own.to_owned(), &report)]).collect();
                file.line(&plot::svg(&reports)?)?;
            }
            if !self.is_json_printed {
                let mut out = io::stdout();
                if let Some(last) = self.totals.last() {
                    table::traffic_line(&mut out, last)?;
                }
                table::collective_foot(&mut out, &self.totals)?;
                writeln!(out, "# Collective test concluded: {}", self.name)?;
            }
        }
        verdict(self.totals.wrong(), self.is_first)
    }
}

/// The name of a file without its folder and its extension.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn verdict(wrong: u64, is_first: bool) -> Result<(), Failure> {
    match (wrong, is_first) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure::new(format!("{wrong} elements have wrong values"))),
        (_, false) => Err(Failure::peer("there are wrong values")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::table::CollectiveTime;

    #[test]
    fn rows_are_kept_for_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        for (words, kept) in [(vec!["all_reduce", "-N", "0"], 0), (vec!["all_reduce", "-J", file.to_str().unwrap()], 9)]
        {
            let args = Args::try_parse_from(words).unwrap();
            let mut report = Report::new("all_reduce", &args, true, 9).unwrap();
            report.is_json_printed = true;
            for size in 0..9 {
                let out_of_place = Some(CollectiveTime::new(1e-6, (1000.0, 1.0), Some(1)));
                let (dtype, redop, algo) = ("float", "sum", "ring");
                let row = CollectiveRow { size, count: 1, dtype, redop, root: -1, algo, out_of_place, in_place: None };
                report.row(row).unwrap();
            }
            assert_eq!((report.rows.len(), report.totals.wrong()), (kept, 9));
        }
    }
}
