//! Fits the model to measured runs of this package's programs on one host.
//!
//! The time of a run is `c (alpha messages + beta bytes + gamma reduced)`, where the three counts
//! are the algorithm's and `c = max(1, ranks / cores)` says how many ranks share a core. The fit
//! minimizes the squares of the relative errors, so that short and long runs count the same, with
//! parameters that are not negative.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use rdma_collectives::{Algorithm, Collective};

use super::cost::Traffic;
use super::formula;
use super::network::{Kind, Network};
use super::units::UNLIMITED;
use crate::Failure;

/// Up to this size, `all_reduce --algo auto` is taken to send in one step, above it in two, if a
/// report does not name the algorithm.
const ONE_STEP: f64 = 16384.0;
/// Rounds of the descent. Each is a pass over all rows for each of the three parameters.
const ROUNDS: usize = 5000;

/// A measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The collective.
    pub operation: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Number of ranks, all on one host.
    pub ranks: usize,
    /// Bytes, in nccl-tests' meaning.
    pub size: f64,
    /// Time of one operation.
    pub seconds: f64,
}

/// The model's parameters on one host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte that a rank sends.
    pub beta: f64,
    /// Seconds per byte that a rank reduces.
    pub gamma: f64,
    /// Number of cores that the ranks share.
    pub cores: usize,
}

/// The relative difference between predictions and measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FitError {
    /// Number of rows.
    pub rows: usize,
    /// Half of the rows have at most this error.
    pub median: f64,
    /// The largest error.
    pub worst: f64,
    /// The size of the row with the largest error.
    pub worst_size: f64,
}

impl Fit {
    /// Fits the parameters to measured rows.
    ///
    /// # Errors
    /// If there are fewer than three rows, or the model lacks the algorithm of one.
    pub fn new(rows: &[Row], cores: usize) -> Result<Self, Failure> {
        if rows.len() < 3 {
            return Err(Failure::usage(format!(
                "{} measured rows cannot fit three parameters; give more files",
                rows.len()
            )));
        }
        // Each count relative to the measured time: the sum of the products has to be 1.
        let relative = |row: &Row| Ok(counts(row, cores)?.map(|count| count / row.seconds));
        let relative = rows.iter().map(relative).collect::<Result<Vec<_>, Failure>>()?;
        let [alpha, beta, gamma] = least_squares(&relative);
        Ok(Self { alpha, beta, gamma, cores })
    }

    /// The predicted time of a run.
    ///
    /// # Errors
    /// If the model lacks the run's algorithm.
    pub fn predict(&self, row: &Row) -> Result<f64, Failure> {
        let [messages, bytes, reduced] = counts(row, self.cores)?;
        Ok(self.alpha * messages + self.beta * bytes + self.gamma * reduced)
    }

    /// The errors of predictions on measured rows.
    ///
    /// # Errors
    /// If the model lacks the algorithm of a row.
    pub fn error(&self, rows: &[Row]) -> Result<FitError, Failure> {
        let of = |row: &Row| Ok(((self.predict(row)? / row.seconds - 1.0).abs(), row.size));
        let mut errors = rows.iter().map(of).collect::<Result<Vec<_>, Failure>>()?;
        errors.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(worst, worst_size)) = errors.last() else { return Ok(FitError::default()) };
        Ok(FitError { rows: errors.len(), median: errors[(errors.len() - 1) / 2].0, worst, worst_size })
    }

    /// A host with these parameters.
    #[must_use]
    pub fn network(&self, ranks: usize) -> Network {
        let per_core = sharing(ranks, self.cores);
        let mut network = Network::preset(Kind::Host, ranks);
        network.overhead = self.alpha * per_core;
        network.intra.latency = 0.0;
        network.intra.rate = rate(self.beta * per_core);
        network.reduce_rate = rate(self.gamma * per_core);
        network
    }
}

/// Reads the rows of a file that a program of this package wrote with `--json`.
///
/// # Errors
/// If the file cannot be read, is no such file, or has an unknown program or algorithm.
pub fn read_rows(path: &Path) -> Result<Vec<Row>, Failure> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    parse_rows(&text).map_err(|error| {
        let path = path.display();
        Failure::usage(format!("{path}: {error}; give files that `all_reduce --json` wrote"))
    })
}

fn parse_rows(text: &str) -> Result<Vec<Row>, String> {
    let report: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    let program = report["program"].as_str().ok_or("it names no program")?;
    let operation = Collective::named(program).ok_or_else(|| format!("{program} is no collective"))?;
    formula::check_operation(operation)?;
    let ranks = report["ranks"].as_u64().and_then(|ranks| usize::try_from(ranks).ok());
    let ranks = ranks.filter(|ranks| (2..=4096).contains(ranks)).ok_or("it has no number of ranks from 2 to 4096")?;
    let results = report["results"].as_array().ok_or("it has no results")?;
    let mut rows = Vec::new();
    for result in results {
        let size = result["size"].as_f64().filter(|&size| size > 0.0).ok_or("a result has no size")?;
        let algorithm = algorithm(&report, result, operation, size)?;
        let times = ["out_of_place", "in_place"].iter().filter_map(|side| result[side]["time"].as_f64());
        let times = times.filter(|&time| time > 0.0);
        rows.extend(times.map(|time| Row { operation, algorithm, ranks, size, seconds: time * 1e-6 }));
    }
    Ok(rows)
}

/// The algorithm that the result, or the report, names; otherwise the one that `auto` took before
/// results named it.
fn algorithm(report: &Value, result: &Value, operation: Collective, size: f64) -> Result<Algorithm, String> {
    let named = [&result["algo"], &result["algorithm"], &report["algorithm"]].into_iter().find_map(Value::as_str);
    match named {
        Some(name) if name != "auto" && name != "tuned" => {
            Algorithm::named(name).ok_or_else(|| format!("{name} is no known algorithm"))
        }
        _ if operation == Collective::AllReduce && size > ONE_STEP => Ok(Algorithm::TwoStep),
        _ => Ok(Algorithm::Direct),
    }
}

/// The messages, bytes and reduced bytes of a run, each times the number of ranks per core.
fn counts(row: &Row, cores: usize) -> Result<[f64; 3], Failure> {
    let network = Network::preset(Kind::Host, row.ranks);
    let traffic = Traffic::new(&network, row.operation, row.algorithm).map_err(Failure::usage)?;
    let bytes: f64 = traffic.loads().map(|(phase, loads)| phase.repeat as f64 * loads[0]).sum();
    let per_core = sharing(row.ranks, cores);
    Ok([traffic.messages(), bytes * row.size, traffic.reduced() * row.size].map(|count| count * per_core))
}

/// The rate of a number of seconds per byte.
fn rate(seconds: f64) -> f64 {
    (1.0 / seconds).min(UNLIMITED)
}

fn sharing(ranks: usize, cores: usize) -> f64 {
    (ranks as f64 / cores as f64).max(1.0)
}

/// The non-negative parameters whose products with the rows are nearest to 1, by descent along one
/// parameter at a time. Counts that are proportional to each other leave the parameters open, not
/// the predictions.
fn least_squares(rows: &[[f64; 3]]) -> [f64; 3] {
    let norms: [f64; 3] = std::array::from_fn(|column| rows.iter().map(|row| row[column].powi(2)).sum());
    let mut parameters = [0.0; 3];
    let mut rest = vec![1.0; rows.len()];
    for _ in 0..ROUNDS {
        for column in 0..3 {
            if norms[column] == 0.0 {
                continue;
            }
            let gradient: f64 = rows.iter().zip(&rest).map(|(row, rest)| row[column] * rest).sum();
            let new = (parameters[column] + gradient / norms[column]).max(0.0);
            let change = new - parameters[column];
            parameters[column] = new;
            rows.iter().zip(&mut rest).for_each(|(row, rest)| *rest -= row[column] * change);
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ranks: usize, size: f64, algorithm: Algorithm) -> Row {
        Row { operation: Collective::AllReduce, algorithm, ranks, size, seconds: 1.0 }
    }

    #[test]
    fn a_fit_finds_the_parameters_of_exact_runs() {
        let truth = Fit { alpha: 2e-6, beta: 1e-9, gamma: 3e-10, cores: 2 };
        let mut rows = Vec::new();
        for ranks in [2, 3, 4, 8] {
            for size in [8.0, 1024.0, 65536.0, 1e6, 1e8] {
                for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::RecursiveDoubling] {
                    rows.push(row(ranks, size, algorithm));
                }
            }
        }
        rows.iter_mut().for_each(|row| row.seconds = truth.predict(row).unwrap());
        let fit = Fit::new(&rows, 2).unwrap();
        let error = fit.error(&rows).unwrap();
        assert!(error.worst < 0.01, "{fit:?} {error:?}");
        assert!((fit.alpha / truth.alpha - 1.0).abs() < 0.01, "{fit:?}");

        // Another algorithm and another number of ranks.
        let mut held_out = [row(5, 1e5, Algorithm::TwoStep), row(6, 1e7, Algorithm::Ring)];
        held_out.iter_mut().for_each(|row| row.seconds = truth.predict(row).unwrap());
        assert!(fit.error(&held_out).unwrap().worst < 0.05);

        let traffic = Traffic::new(&fit.network(4), Collective::AllReduce, Algorithm::Ring).unwrap();
        let predicted = fit.predict(&row(4, 1e6, Algorithm::Ring)).unwrap();
        assert!((traffic.predict(1e6).seconds / predicted - 1.0).abs() < 1e-9);
    }

    #[test]
    fn reports_of_all_reduce_are_read() {
        let text = r#"{"program":"all_reduce","ranks":2,"results":[
            {"size":8,"out_of_place":{"time":1.5},"in_place":{"time":1.0}},
            {"size":65536,"out_of_place":{"time":20.0}},
            {"size":65536,"algo":"ring","in_place":{"time":30.0}}]}"#;
        let rows = parse_rows(text).unwrap();
        let algorithms: Vec<Algorithm> = rows.iter().map(|row| row.algorithm).collect();
        assert_eq!(algorithms, [Algorithm::Direct, Algorithm::Direct, Algorithm::TwoStep, Algorithm::Ring]);
        assert!((rows[0].seconds - 1.5e-6).abs() < 1e-15);
    }

    #[test]
    fn other_files_are_refused() {
        let cases = [
            ("", "no JSON"),
            ("{}", "names no program"),
            (r#"{"program":"pingpong"}"#, "pingpong is no collective"),
            (r#"{"program":"barrier"}"#, "there is no formula for barrier: use one of all_reduce, all_gather"),
            (r#"{"program":"all_reduce","ranks":1}"#, "no number of ranks"),
            (r#"{"program":"all_reduce","ranks":2}"#, "no results"),
            (r#"{"program":"all_reduce","ranks":2,"results":[{}]}"#, "no size"),
            (r#"{"program":"all_reduce","ranks":2,"results":[{"size":8,"algorithm":"magic"}]}"#, "magic"),
        ];
        for (text, part) in cases {
            let error = parse_rows(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(read_rows(Path::new("/nonexistent")).is_err());
        assert!(Fit::new(&[], 2).is_err());
    }
}
