//! Predictions as a table, with units for people, and as JSON, with exact numbers.

use std::io::{self, Write};

use serde::Serialize;

use rdma_collectives::{Algorithm, Collective};

use super::cost::{Prediction, Traffic};
use super::formula::{self, ALGORITHMS};
use super::network::{Network, Scope};
use super::units::{show_bits, show_bytes, show_rate, show_size, show_time};
use crate::Failure;
use crate::table::bus_factor;

/// Predictions of an operation, by size and algorithm.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The collective.
    pub operation: Collective,
    /// The network.
    pub network: Network,
    /// The rows, by size, and for each size in the order of algorithms.
    pub results: Vec<ReportRow>,
}

/// A prediction for one size and algorithm.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    /// Bytes, in nccl-tests' meaning.
    pub size: f64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Predicted time, in microseconds.
    pub time: f64,
    /// Size divided by time, in GB/s (1e9 bytes).
    pub alg_bw: f64,
    /// `alg_bw` times nccl-tests' factor.
    pub bus_bw: f64,
    /// The part that takes the longest.
    pub limit: &'static str,
    /// Whether no other algorithm is faster, so that `auto` takes this one.
    pub auto: bool,
    /// The parts of the time.
    pub prediction: Prediction,
}

impl Report {
    /// Predicts an operation for each size with one algorithm, or with all.
    ///
    /// # Errors
    /// If the operation has no formula, or the algorithm asked for does not serve it on this
    /// network.
    pub fn new(
        network: &Network,
        operation: Collective,
        algorithm: Option<Algorithm>,
        sizes: &[f64],
    ) -> Result<Self, Failure> {
        network.validate()?;
        formula::check_operation(operation).map_err(|reason| Failure::usage(format!("--operation: {reason}")))?;
        let all = || ALGORITHMS.iter().map(|(algorithm, _)| *algorithm).collect();
        let asked: Vec<_> = algorithm.map_or_else(all, |algorithm| vec![algorithm]);
        let (mut traffics, mut refusals) = (Vec::new(), Vec::new());
        for algorithm in asked {
            match Traffic::new(network, operation, algorithm) {
                Ok(traffic) => traffics.push((algorithm, traffic)),
                Err(reason) => refusals.push(reason),
            }
        }
        if let (Some(algorithm), Some(reason)) = (algorithm, refusals.first()) {
            return Err(Failure::usage(format!("--algo {algorithm}: {reason}")));
        }
        let mut results = Vec::new();
        for &size in sizes {
            let first = results.len();
            results.extend(traffics.iter().map(|(algorithm, traffic)| {
                ReportRow::new(operation, network.ranks, size, *algorithm, traffic.predict(size))
            }));
            let best = results[first..].iter_mut().min_by(|a, b| a.time.total_cmp(&b.time));
            best.into_iter().for_each(|row| row.auto = true);
        }
        Ok(Self { operation, network: network.clone(), results })
    }

    /// The row that `auto` takes for the last size.
    #[must_use]
    pub fn last_best(&self) -> Option<&ReportRow> {
        self.results.iter().rev().find(|row| row.auto)
    }

    /// Whether switches reduce in one of the algorithms.
    #[must_use]
    pub fn reduces_in_network(&self) -> bool {
        self.results.iter().any(|row| row.algorithm == Algorithm::InNetwork)
    }

    /// Prints all rows, and the links of the last size's best row.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_network(out)?;
        let [size, algorithm, time, alg_bw, bus_bw, limit] =
            ["size", "algorithm", "time", "algbw", "busbw", "limited by"];
        writeln!(out, "# {size:>8}  {algorithm:<20}  {time:>9}  {alg_bw:>9}  {bus_bw:>9}  {limit:<14}  auto")?;
        for row in &self.results {
            let (size, time) = (show_size(row.size), show_time(row.prediction.seconds));
            let (alg_bw, bus_bw) = (show_rate(row.alg_bw * 1e9), show_rate(row.bus_bw * 1e9));
            let (algorithm, limit) = (row.algorithm, row.limit);
            let auto = if row.auto { "  *" } else { "" };
            let line = format!("{size:>10}  {algorithm:<20}  {time:>9}  {alg_bw:>9}  {bus_bw:>9}  {limit:<14}{auto}");
            writeln!(out, "{}", line.trim_end())?;
        }
        self.last_best().map_or(Ok(()), |row| print_links(out, row))
    }

    fn print_network(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# {} on {}: {}", self.operation, self.network.kind.name(), describe(&self.network))
    }
}

impl ReportRow {
    fn new(operation: Collective, ranks: usize, size: f64, algorithm: Algorithm, prediction: Prediction) -> Self {
        let alg_bw = if prediction.seconds > 0.0 { size / prediction.seconds / 1e9 } else { 0.0 };
        Self {
            size,
            algorithm,
            time: prediction.seconds * 1e6,
            alg_bw,
            bus_bw: alg_bw * bus_factor(operation, ranks),
            limit: prediction.limit(),
            auto: false,
            prediction,
        }
    }
}

/// Prints the load of each level of links.
fn print_links(out: &mut dyn Write, row: &ReportRow) -> io::Result<()> {
    let seconds = row.prediction.seconds;
    let algorithm = row.algorithm;
    writeln!(out, "#")?;
    writeln!(out, "# Links with {} by {algorithm}, each way, of the busiest group:", show_size(row.size))?;
    writeln!(
        out,
        "# {:<14}  {:>9}  {:>9}  {:>9}  {:>9}  {:>5}",
        "links", "of ranks", "rate", "bytes", "busy", "share"
    )?;
    for load in &row.prediction.levels {
        let of = if load.level.scope == Scope::Port { 1 } else { load.level.group };
        let (rate, bytes, busy) = (show_rate(load.level.rate), show_bytes(load.bytes), show_time(load.busy));
        let share = 100.0 * load.busy / seconds;
        writeln!(out, "  {:<14}  {of:>9}  {rate:>9}  {bytes:>9}  {busy:>9}  {share:>3.0} %", load.level.name)?;
    }
    let (alpha, gamma) = (show_time(row.prediction.alpha), show_time(row.prediction.gamma));
    writeln!(out, "# Messages and latency {alpha}, reduction {gamma}; limited by: {}", row.limit)
}

/// The number of ranks and hosts, and their NICs.
pub(super) fn describe(network: &Network) -> String {
    let Network { ranks, per_host, rails, .. } = *network;
    match network.hosts() {
        1 => format!("{ranks} GPUs in one host"),
        hosts => {
            let rate = show_bits(network.nic.rate);
            format!("{ranks} GPUs in {hosts} hosts of {per_host} GPUs and {rails} NICs ({rate})")
        }
    }
}
