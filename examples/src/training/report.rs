//! The table and the JSON of a run, with the planner's figures.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::exchange::Tally;
use super::grid::{Grid, Kind};
use super::model::{BYTES, Traffic};
use super::options::Args;
use super::step::Tallies;
use crate::Failure;
use crate::output::Output;
use crate::plan::units::{show_bytes, show_time};
use crate::plan::{self, Fit, Members, Network, Training};

/// The planner's network for the groups of a grid.
#[derive(Debug)]
pub(super) struct Planner {
    kind: plan::Kind,
    fit: Option<Fit>,
}

/// GPUs of a host of the planner's networks.
const PER_HOST: usize = 8;

impl Planner {
    /// # Errors
    /// If a file of measured runs is none.
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let options = &args.planner;
        let usual = if options.dry_run { plan::Kind::FatTree } else { plan::Kind::Host };
        let rows = options.fit.iter().map(|path| plan::read_rows(path)).collect::<Result<Vec<_>, _>>()?.concat();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let fit = if rows.is_empty() { None } else { Some(Fit::new(&rows, cores)?) };
        Ok(Self { kind: options.network.unwrap_or(usual), fit })
    }

    fn describe(&self) -> String {
        match (&self.fit, self.kind) {
            (Some(_), _) => "this machine, by measured runs".to_owned(),
            (None, plan::Kind::Host) => "one host with GPUs".to_owned(),
            (None, kind) => format!("GPUs in hosts of {PER_HOST}, {}", kind.name()),
        }
    }

    /// The network that a group has, if all groups of its kind communicate at once.
    fn network(&self, grid: &Grid, traffic: &Traffic) -> Network {
        let ranks = traffic.ranks;
        if let Some(fit) = self.fit {
            // Each group has its share of the cores.
            let cores = (fit.cores * ranks / grid.ranks()).max(1);
            return Fit { cores, ..fit }.network(ranks);
        }
        let mut network = Network::preset(self.kind, ranks);
        if self.kind != plan::Kind::Host {
            let near = (PER_HOST / grid.stride(traffic.kind)).clamp(1, ranks);
            let fits = (1..=near).rev().find(|per_host| ranks % per_host == 0);
            // One NIC for each GPU.
            (network.per_host, network.rails) = (fits.unwrap_or(1), fits.unwrap_or(1));
        }
        network
    }

    /// The seconds that a step's operations of a kind take, one after the other.
    fn seconds(&self, grid: &Grid, traffic: &Traffic) -> Result<f64, Failure> {
        let report = plan::Report::new(&self.network(grid, traffic), traffic.operation, None, &[traffic.size])?;
        let one = report.last_best().map_or(0.0, |row| row.prediction.seconds);
        Ok(one * traffic.operations as f64)
    }
}

/// The traffic of a kind in a step.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    traffic: Traffic,
    /// The planner's figures: bytes that the busiest rank sends, and seconds.
    planned_sent: f64,
    planned_seconds: f64,
    /// Means of the timed steps, of the rank that has most.
    #[serde(flatten)]
    measured: Option<Measured>,
}

/// The measured traffic of a kind in a step.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    sent: f64,
    seconds: f64,
    /// Seconds for which a rank could do nothing else.
    exposed: f64,
    /// Elements with wrong values at all ranks, of the verified steps; `None` if none was.
    wrong: Option<u64>,
}

/// The measurements of all ranks.
#[derive(Clone, Debug)]
pub(super) struct Measurements {
    /// Sums over the timed steps, by rank.
    pub(super) timed: Vec<Tallies>,
    /// Sums over the verified steps, by rank.
    pub(super) verified: Option<Vec<Tallies>>,
    /// Mean seconds of a step at the slowest rank.
    pub(super) step: f64,
}

impl Measurements {
    /// Elements with wrong values.
    fn wrong(&self) -> u64 {
        self.verified.iter().flatten().map(Tallies::wrong).sum()
    }

    /// The verdict of the ranks that print nothing.
    ///
    /// # Errors
    /// If there are wrong values, which rank 0 reports.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        if self.wrong() > 0 { Err(Failure::peer("there are wrong values")) } else { Ok(()) }
    }

    fn of(&self, kind: Kind, steps: usize) -> Measured {
        let most = |part: fn(&Tally) -> f64| {
            let parts = self.timed.iter().map(|tallies| part(tallies.of(kind)));
            parts.fold(0.0, f64::max) / steps as f64
        };
        Measured {
            sent: most(|tally| tally.sent as f64),
            seconds: most(|tally| tally.seconds),
            exposed: most(|tally| tally.exposed),
            wrong: self.verified.as_ref().map(|ranks| ranks.iter().map(|tallies| tallies.of(kind).wrong).sum()),
        }
    }
}

/// The report of a run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    args: &'a Args,
    planner: Planner,
    rows: Vec<Row>,
    /// Mean seconds of a measured step.
    step: Option<f64>,
}

impl<'a> Report<'a> {
    /// # Errors
    /// If the planner has no network for a group.
    pub(super) fn new(args: &'a Args, planner: Planner, measured: Option<&Measurements>) -> Result<Self, Failure> {
        let row = |traffic: Traffic| {
            Ok(Row {
                planned_sent: traffic.sent(),
                planned_seconds: planner.seconds(&args.grid, &traffic)?,
                measured: measured.map(|measured| measured.of(traffic.kind, args.step.steps)),
                traffic,
            })
        };
        let rows = args.model.traffics(&args.grid).into_iter().map(row).collect::<Result<_, Failure>>()?;
        Ok(Self { args, planner, rows, step: measured.map(|measured| measured.step) })
    }

    /// Writes the report to a file of `--json`, and prints it unless that is standard output.
    ///
    /// # Errors
    /// If there are wrong values, or the report cannot be written.
    pub(super) fn conclude(&self, json: Option<Output>, facts: &Value) -> Result<(), Failure> {
        if let Some(mut file) = json {
            file.line(&self.json(facts).to_string())?;
        }
        if !self.args.json.is_printed() {
            self.print(&mut io::stdout())?;
        }
        let wrong: u64 = self.rows.iter().filter_map(|row| row.measured?.wrong).sum();
        if wrong > 0 {
            return Err(Failure::new(format!("{wrong} elements have wrong values")));
        }
        Ok(())
    }

    fn json(&self, facts: &Value) -> Value {
        let mut report = facts.clone();
        report["program"] = json!("training_step");
        (report["grid"], report["model"]) = (json!(self.args.grid), json!(self.args.model));
        (report["planner"], report["step_seconds"]) = (json!(self.planner.describe()), json!(self.step));
        report["results"] = json!(self.rows);
        report
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Grid { dp, tp, pp, ep } = self.args.grid;
        let ranks = self.args.grid.ranks();
        writeln!(out, "# {ranks} ranks: dp {dp} x tp {tp} x pp {pp}, ep {ep}; planner: {}", self.planner.describe())?;
        self.gradients().iter().flatten().try_for_each(|line| writeln!(out, "# {line}"))?;
        let head = ["operation", "size", "sent", "planned", "time", "waited", "planned", "wrong"];
        print_line(
            out,
            "# kind",
            head[0],
            ["ranks", "ops", head[1], head[2], head[3], head[4], head[5], head[6], head[7]],
        )?;
        self.rows.iter().try_for_each(|row| row.print(out))?;
        match self.step {
            Some(step) => writeln!(out, "# a step: {}", show_time(step)),
            None => Ok(()),
        }
    }

    /// The gradients of a rank, as the planner says it.
    fn gradients(&self) -> Option<[String; 3]> {
        let row = self.rows.iter().find(|row| row.traffic.kind == Kind::Data)?;
        let Traffic { size, operations, ranks, .. } = row.traffic;
        let parameters = size * operations as f64 / BYTES as f64;
        let (bytes, step) = (BYTES as f64, self.args.planner.step_time);
        let mut lines = Training { parameters, bytes, step }.describe(Members::ranks(ranks));
        lines[0].insert_str(0, "Gradients of a rank: ");
        Some(lines)
    }
}

impl Row {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Traffic { kind, operation, ranks, operations, size, .. } = self.traffic;
        let measured = |show: &dyn Fn(&Measured) -> String| self.measured.as_ref().map_or_else(|| "-".to_owned(), show);
        let columns = [
            ranks.to_string(),
            operations.to_string(),
            show_bytes(size),
            measured(&|measured| show_bytes(measured.sent)),
            show_bytes(self.planned_sent),
            measured(&|measured| show_time(measured.seconds)),
            measured(&|measured| show_time(measured.exposed)),
            show_time(self.planned_seconds),
            measured(&|measured| measured.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string())),
        ];
        print_line(out, kind.name(), operation.name(), columns)
    }
}

fn print_line(out: &mut dyn Write, kind: &str, operation: &str, columns: [impl AsRef<str>; 9]) -> io::Result<()> {
    let columns: String = columns.iter().map(|column| format!("  {:>8}", column.as_ref())).collect();
    writeln!(out, "{kind:<12}  {operation:<10}{columns}")
}
