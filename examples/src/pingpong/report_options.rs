//! The options of what `pingpong` prints, and of the limits that it checks.

use clap::ValueEnum;

use super::options::{Options, Test};
use crate::Failure;
use crate::cli;

/// Options of the report of one side, which need not be those of the other.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = cli::OUTPUT)]
pub struct ReportOptions {
    /// Fail if no size has this bandwidth, in the unit that is printed
    #[arg(short = 'w', long = "limit_bw", value_name = "RATE", value_parser = limit, hide_short_help = true)]
    pub(super) limit_bw: Option<f64>,
    /// Fail if no size has this rate, in millions of messages per second
    #[arg(short = 'y', long = "limit_msgrate", value_name = "RATE", value_parser = limit, hide_short_help = true)]
    pub(super) limit_msgrate: Option<f64>,
    /// Print the latency of each message, sorted; with --json as "latencies"
    #[arg(short = 'H', long = "report-histogram", hide_short_help = true)]
    pub(super) histogram: bool,
    /// Print the latency of each message, in the order of the messages; with --json as "latencies"
    #[arg(short = 'U', long = "report-unsorted", hide_short_help = true)]
    pub(super) unsorted: bool,
    /// Print this figure alone, a line for each size
    #[arg(long, value_enum, value_name = "FIGURE", hide_short_help = true)]
    pub(super) output: Option<Figure>,
}

/// The figure that is printed in place of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// The average bandwidth
    #[value(name = "bandwidth")]
    Bandwidth,
    /// Millions of messages per second
    #[value(name = "message_rate")]
    MessageRate,
    /// The average latency in microseconds
    #[value(name = "latency")]
    Latency,
}

impl ReportOptions {
    /// The latencies that are to be printed once, from those in the order of the messages.
    pub(super) fn latencies(&self, mut samples: Vec<f64>) -> Option<Vec<f64>> {
        if self.histogram && !self.unsorted {
            samples.sort_unstable_by(f64::total_cmp);
        }
        (self.histogram || self.unsorted).then_some(samples)
    }

    /// Refuses options that mean nothing for the measurement.
    ///
    /// # Errors
    /// If one was given.
    pub fn check(&self, options: &Options, is_json: bool) -> Result<(), Failure> {
        if self.output.is_some() && is_json {
            return Err(Failure::usage("--output prints one figure, and --json all of them; leave one of them out"));
        }
        let is_latency = match self.output {
            Some(figure) => figure == Figure::Latency,
            None => options.test == Test::Lat,
        };
        match (self.output, options.test) {
            (Some(_), Test::Both) => {
                return Err(Failure::usage("--output prints one test; give --test lat or --test bw"));
            }
            (Some(_), test) if is_latency != (test == Test::Lat) => {
                let text = "--output: --test lat has latency, and --test bw has bandwidth and message_rate";
                return Err(Failure::usage(text));
            }
            _ => {}
        }
        let has_limit = self.limit_bw.is_some() || self.limit_msgrate.is_some();
        if has_limit && options.test == Test::Lat {
            return Err(Failure::usage("--limit_bw and --limit_msgrate are for bandwidth tests; leave --test lat out"));
        }
        let has_samples = self.histogram || self.unsorted;
        if has_samples && (options.test == Test::Bw || options.duration.is_some()) {
            let text = "--report-histogram and --report-unsorted print the latency of each message; leave --test bw \
                        and --duration out";
            return Err(Failure::usage(text));
        }
        Ok(())
    }
}

fn limit(text: &str) -> Result<f64, String> {
    cli::number_in(text, 0.0..=1e12)
}
