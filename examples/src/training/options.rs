//! The options of `training_step`.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use super::grid::Grid;
use super::model::Model;
use crate::cli::{self, Size};
use crate::connect::ConnectionOptions;
use crate::device::DeviceOptions;
use crate::output::JsonOptions;
use crate::placement::PlacementOptions;
use crate::plan::{self, units};
use rdma_collectives::Transport;

/// Makes the traffic of training steps of a transformer on a grid of ranks, and verifies it.
///
/// Every rank sends and receives what data, tensor, pipeline and expert parallelism ask for, in
/// bf16; computing is a pause. Gradients are reduced in buckets while the layers before them
/// compute. The table has the traffic of the rank with most, beside the planner's figures. Times
/// include waiting for other ranks, as in the bubble of a pipeline; `waited` is the part of it in
/// which the rank could do nothing else.
///
/// Without arguments 8 ranks train a small model on this machine. A grid of --dp, --tp and --pp has
/// as many ranks as their product.
#[derive(Clone, Debug, Parser, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(version, args_override_self = true, after_help = crate::failure::STATUS_HELP)]
#[command(mut_arg("ranks", |arg| {
    let help = "Ranks to start on this machine, in place of -g (default: those of the grid)";
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
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) grid: Grid,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) model: Model,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) step: StepOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) planner: PlannerOptions,
    /// How ranks reach each other's memory
    #[arg(long, value_parser = cli::one_of::<Transport>(), default_value_t = Transport::Auto)]
    #[arg(help_heading = cli::TRANSPORT)]
    #[arg(hide_short_help = true)]
    pub(super) transport: Transport,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) json: JsonOptions,
}

/// The course of a step.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Steps")]
pub(super) struct StepOptions {
    /// Timed steps; one step before them and one after them are verified
    #[arg(short = 'n', long, value_name = "N", default_value_t = 3, value_parser = cli::count)]
    pub(super) steps: usize,
    /// Check results (1) or not (0)
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(super) check: u8,
    /// Time that a layer computes on a micro-batch; backward takes twice as long
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = units::time)]
    #[serde(skip)]
    #[arg(hide_short_help = true)]
    pub(super) layer_time: f64,
    /// Most bytes of a bucket of gradients; a bucket holds gradients of one layer
    #[arg(long, value_name = "SIZE", default_value = "25M", value_parser = |text: &str| cli::multiple(text, Size(2), Size(1 << 40)))]
    #[arg(hide_short_help = true)]
    pub(super) bucket: Size,
}

/// The network that the planner predicts for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Planner")]
pub(super) struct PlannerOptions {
    /// Print the planner's figures only; nothing is sent
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Network of GPUs that the planner predicts for (default: host; fat-tree with --dry-run)
    #[arg(long, value_enum)]
    #[arg(hide_short_help = true)]
    pub(super) network: Option<plan::Kind>,
    /// Predict for this machine: fit the planner to files that all_reduce --json wrote here
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "network")]
    #[arg(hide_short_help = true)]
    pub(super) fit: Vec<PathBuf>,
    /// Time of a step, for the rate that the gradients need
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::time)]
    #[arg(hide_short_help = true)]
    pub(super) step_time: f64,
}

impl Args {
    /// Gradients of a bucket.
    pub(super) fn bucket(&self) -> usize {
        self.step.bucket.0 / 2
    }
}
