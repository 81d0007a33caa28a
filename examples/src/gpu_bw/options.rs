//! The options of `gpu_bw`.

use clap::ValueEnum;
use rdma_cuda::Gpu;
use serde::Serialize;

use crate::Failure;
use crate::cli::{self, Size};
use crate::pingpong::options;

/// The bytes that are sent for each size, unless `--iters` says otherwise.
const BYTES: usize = 256 << 20;

/// The memory of the messages, and the way between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// The NIC accesses the memory of the GPUs
    Direct,
    /// Messages between the GPUs go through pinned host memory
    Staged,
    /// Host memory, for comparison
    Host,
}

/// Options of one side, which need not be those of the other.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::TRANSPORT)]
pub struct SideOptions {
    /// The device, and how to report.
    #[command(flatten)]
    pub(super) side: options::LocalOptions,
    /// The GPU's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(i32).range(0..))]
    #[arg(help_heading = cli::TRANSPORT)]
    gpu: i32,
}

impl SideOptions {
    /// The GPU that the options ask for.
    ///
    /// # Errors
    /// If there is no driver, or no such GPU.
    pub fn gpu(&self) -> Result<Gpu, Failure> {
        Gpu::new(self.gpu).map_err(|error| Failure::new(error.to_string()).context(format_args!("GPU {}", self.gpu)))
    }
}

/// Options of the measurement, which must be equal on both sides.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = cli::SIZES)]
pub struct Options {
    /// Memories to measure, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct,staged,host")]
    #[arg(help_heading = cli::WHAT)]
    pub(super) memory: Vec<Memory>,
    /// Smallest message
    #[arg(short = 'b', long = "min", value_name = "SIZE", default_value = "4K")]
    min: Size,
    /// Largest message
    #[arg(short = 'e', long = "max", value_name = "SIZE", default_value = "64M")]
    max: Size,
    /// Each size is the one before times this
    #[arg(long, value_name = "N", default_value_t = 4)]
    factor: usize,
    /// Messages of each size (default: as many as make 256M, 5 to 1000)
    #[arg(short = 'n', long, value_name = "N", value_parser = cli::count)]
    iters: Option<usize>,
    /// Most messages in flight
    #[arg(short, long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) tx_depth: u32,
    /// Print bandwidth in Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    #[arg(help_heading = cli::OUTPUT)]
    pub(super) report_gbits: bool,
}

impl Options {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// If options contradict each other or are out of range.
    pub fn validate(&self) -> Result<(), Failure> {
        if self.max > Size(1 << 30) {
            return Err(Failure::usage(format!("--max {}: a message has at most 1G", self.max)));
        }
        self.sizes().map(drop)
    }

    pub(super) fn sizes(&self) -> Result<Vec<usize>, Failure> {
        cli::size_steps(self.min, self.max, self.factor, 1)
    }

    pub(super) fn iterations(&self, size: usize) -> usize {
        self.iters.unwrap_or_else(|| (BYTES / size).clamp(5, 1000))
    }
}
