//! `cargo xtask bindings`: generates `rdma-sys/src/bindings.rs` and the lists for its tests from
//! rdma-core's headers, or checks them.
//!
//! bindgen takes long to build and needs libclang, so it is behind the feature `bindings`. Without
//! the feature, this command runs itself again with the feature.

#[cfg(feature = "bindings")]
mod headers;

use std::path::PathBuf;

/// Without an option: generate the bindings from the newest headers that Debian has.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Change nothing: fail if the headers of the committed files' version give other files. Where
    /// Debian no longer has that version, only the files that follow from the others are checked;
    /// rdma-sys' tests compare the bindings with the system's headers.
    #[arg(long)]
    check: bool,
    /// The folder that holds `infiniband/verbs.h`, instead of Debian's packages.
    #[arg(long, value_name = "DIR", requires = "version")]
    include: Option<PathBuf>,
    /// The version of rdma-core to fetch, or the version of the headers in `--include`.
    #[arg(long, value_name = "VERSION", conflicts_with = "check")]
    version: Option<String>,
}

/// Runs the command.
#[cfg(feature = "bindings")]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    headers::run(options)
}

/// Runs the command in a build that has bindgen.
#[cfg(not(feature = "bindings"))]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let Options { check, include, version } = options;
    let mut cargo = crate::system::cargo(&crate::root());
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "bindings", "--", "bindings"]);
    cargo.args(check.then_some("--check"));
    cargo.args(include.iter().map(|include| format!("--include={}", include.display())));
    cargo.args(version.iter().map(|version| format!("--version={version}")));
    crate::system::succeeds(&mut cargo, |_| "the command failed".into())
}
