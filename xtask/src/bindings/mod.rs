//! `cargo xtask bindings`: makes `rdma-sys/src/bindings.rs` and the lists for its tests from
//! rdma-core's headers, or checks them.
//!
//! bindgen takes long to build and needs libclang, so it is behind feature `bindings`: without the
//! feature, this command runs itself again with the feature.

#[cfg(feature = "bindings")]
mod headers;

use std::path::PathBuf;

/// Without an option: generate the bindings from the system's headers.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Change nothing: fail if the headers give other files than the committed ones. With headers
    /// of another version than the committed files', fail if the two disagree in a definition of
    /// the headers.
    #[arg(long)]
    check: bool,
    /// The folder that holds `infiniband/verbs.h`, instead of the system's.
    #[arg(long, value_name = "DIR")]
    include: Option<PathBuf>,
    /// The headers' version, for the files' first lines; by default dpkg-query's.
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Take the headers from Debian: `--check` fetches the committed version, otherwise the newest
    /// in any suite is fetched. Set by CI=true for `--check`, which then falls back to the system's
    /// headers.
    #[arg(long, conflicts_with = "include")]
    fetch: bool,
}

/// Runs the command.
#[cfg(feature = "bindings")]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    headers::run(options)
}

/// Runs the command in a build that has bindgen.
#[cfg(not(feature = "bindings"))]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let Options { check, include, version, fetch } = options;
    let mut cargo = crate::system::cargo(&crate::root());
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "bindings", "--", "bindings"]);
    cargo.args(check.then_some("--check")).args(fetch.then_some("--fetch"));
    cargo.args(include.iter().map(|include| format!("--include={}", include.display())));
    cargo.args(version.iter().map(|version| format!("--version={version}")));
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the command failed".into()),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
