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
    let mut counts = cargo(&crate::root());
    // The program and the profile are such that other stages of CI have built all but the last
    // crate: not a benchmark, which has more dependencies, and the features of the whole workspace.
    // callgrind finds the counted function by its symbol.
    counts.args(["run", "--release", "--bin", "counts"]);
    counts.args(["--config", "profile.release.package.rdma-benches.strip=\"none\"", "--"]);
    counts.args(options.update.then_some("--update"));
    succeeds(&mut counts, |_| "the instruction counts are not as promised, or were not counted".into())
}
