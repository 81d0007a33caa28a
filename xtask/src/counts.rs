//! `cargo xtask counts`: compares instruction counts with the table in `benches/counts.txt`.

use crate::system::{cargo, succeeds};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Write the counts into the table, in place of a comparison.
    #[arg(long)]
    update: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // A program of its own, not a benchmark: those are built with crates that no count needs. The
    // profile is that of benchmarks, because callgrind finds the counted function by its symbol.
    let mut counts = cargo(&crate::root());
    counts.args(["run", "--profile", "bench", "-p", "rdma-benches", "--bin", "counts", "--"]);
    counts.args(options.update.then_some("--update"));
    succeeds(&mut counts, |_| "the instruction counts are not as promised, or were not counted".into())
}
