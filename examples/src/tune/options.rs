//! The options of `tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, CommandFactory, Parser};
use serde::Serialize;

use crate::Failure;
use crate::cli::{self, Size};
use crate::collective_program::{self, table_file};
use crate::connect::ConnectionOptions;
use crate::device::DeviceOptions;
use crate::output::JsonOptions;
use crate::placement::PlacementOptions;
use rdma_collectives::{Algorithm, Collective, Transport};

/// Measures every algorithm of the collectives on this machine, and writes the table by which
/// --algo auto chooses.
///
/// Local ranks are measured two, four, eight ... at a time, up to --ranks; under mpirun, Slurm or
/// torchrun, or with --rank, the ranks of the job are. Entries of the table for other numbers
/// of ranks and hosts, other transports and operations stay.
#[derive(Clone, Debug, Parser, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(version, args_override_self = true, after_help = crate::failure::STATUS_HELP)]
#[command(mut_arg("ranks", |arg| {
    let help = "Most ranks to start on this machine, in place of -g (default: 4)";
    arg.help(help).long_help(help)
}))]
pub(super) struct Args {
    #[command(flatten)]
    #[serde(skip)]
    pub(super) placement: PlacementOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) device: DeviceOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) connection: ConnectionOptions,
    /// Collectives to measure (default: all that have several algorithms)
    #[arg(long, value_parser = cli::one_of::<Collective>(), value_name = "NAME,...", value_delimiter = ',')]
    #[arg(help_heading = cli::WHAT)]
    pub(super) ops: Vec<Collective>,
    /// Sizes to measure, in bytes
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    #[arg(default_values = ["64", "512", "4K", "32K", "256K", "2M", "16M"])]
    #[arg(help_heading = cli::SIZES)]
    pub(super) sizes: Vec<Size>,
    /// How ranks reach each other's memory
    #[arg(long, value_parser = cli::one_of::<Transport>(), default_value_t = Transport::Auto)]
    #[arg(help_heading = cli::TRANSPORT)]
    pub(super) transport: Transport,
    /// Measure for a tenth of the time
    #[arg(long)]
    #[arg(help_heading = cli::WHAT)]
    pub(super) quick: bool,
    /// The table to write [env: RDMA_ALGO_TABLE] (default: algorithms.json)
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    #[arg(help_heading = cli::OUTPUT)]
    pub(super) table: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) json: JsonOptions,
}

/// The command of the program.
pub(super) fn command() -> Command {
    Args::command().name("tune")
}

impl Args {
    /// The file of the table.
    pub(super) fn table(&self) -> PathBuf {
        table_file(self.table.as_deref()).unwrap_or_else(|| PathBuf::from("algorithms.json"))
    }

    /// The sizes, from the smallest to the largest.
    ///
    /// # Errors
    /// If one is less than an element.
    pub(super) fn sizes(&self) -> Result<Vec<Size>, Failure> {
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        match sizes.first() {
            Some(&least) if least.0 < size_of::<f32>() => {
                Err(Failure::usage(format!("--sizes {least} is less than one element; give 4 or more")))
            }
            _ => Ok(sizes),
        }
    }

    /// Refuses a list of collectives that have one algorithm each.
    ///
    /// # Errors
    /// If `--ops` is such a list.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if !self.candidates(usize::MAX).is_empty() {
            return Ok(());
        }
        let ops: Vec<&str> = self.ops.iter().map(|op| op.name()).collect();
        Err(Failure::usage(format!("--ops {}: there is one algorithm, so there is nothing to choose", ops.join(","))))
    }

    /// The collectives to measure, and the algorithms among which each has a choice; `None` stands
    /// for the choice without a table.
    pub(super) fn candidates(&self, hosts: usize) -> Vec<(Collective, Vec<Option<Algorithm>>)> {
        let serves = |algorithm: &Algorithm, op| {
            let is_possible = match algorithm {
                Algorithm::Hierarchical | Algorithm::HierarchicalHalving => hosts > 1,
                // It needs processes besides the ranks.
                Algorithm::InNetwork => false,
                _ => true,
            };
            is_possible && algorithm.collectives().contains(&op)
        };
        let of = |&op: &Collective| {
            let named = Algorithm::ALL.iter().filter(|algorithm| serves(algorithm, op));
            (op, [None].into_iter().chain(named.copied().map(Some)).collect::<Vec<_>>())
        };
        let ops = if self.ops.is_empty() { Collective::ALL } else { &self.ops };
        // One algorithm is no choice.
        ops.iter().map(of).filter(|(_, candidates)| candidates.len() > 2).collect()
    }

    /// How often everything is measured; the best time counts.
    pub(super) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// The options of the collectives' programs for these measurements.
    ///
    /// # Errors
    /// Never: the programs have no mandatory option.
    pub(super) fn of_collectives(&self) -> Result<collective_program::Args, Failure> {
        let defaults = collective_program::Args::try_parse_from(["tune"]);
        let mut args = defaults.map_err(|error| Failure::usage(error.to_string()))?;
        (args.placement, args.device, args.connection) =
            (self.placement.clone(), self.device.clone(), self.connection.clone());
        (args.transport, args.warmup) = (self.transport, 2);
        args.budget = Duration::from_millis(if self.quick { 10 } else { 40 });
        // Standard output is for the result.
        args.json = JsonOptions::printed();
        Ok(args)
    }
}
