//! `cargo xtask bindings`: makes `rdma-sys/src/{bindings,functions}.rs` and the list for its ABI test from rdma-core's
//! headers, or checks them.
//!
//! bindgen takes long to build and needs libclang, so it hides behind feature `bindings`: without it, this command
//! runs itself again with it.

#[cfg(feature = "bindings")]
mod compare;
#[cfg(feature = "bindings")]
mod debian;
#[cfg(feature = "bindings")]
mod generate;
#[cfg(feature = "bindings")]
mod items;
#[cfg(feature = "bindings")]
mod layout;
#[cfg(feature = "bindings")]
mod update;

use std::path::PathBuf;

/// With no option: make the bindings from the system's headers.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Change nothing: fail if the committed files are not what the headers give. With headers of another version than
    /// the committed files', fail if the two disagree in anything that the headers define.
    #[arg(long)]
    check: bool,
    /// The folder that holds `infiniband/verbs.h`, instead of the system's.
    #[arg(long, value_name = "DIR")]
    include: Option<PathBuf>,
    /// The headers' version, as it is to stand in the files; found by dpkg-query if not given.
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Take the headers from Debian: `--check` fetches the committed version, otherwise the newest in any suite is
    /// fetched. Set by CI=true for `--check`, which then falls back to the system's headers.
    #[arg(long, conflicts_with = "include")]
    fetch: bool,
}

/// Runs the command.
#[cfg(feature = "bindings")]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    update::run(options)
}

/// Runs the command in a build that has bindgen.
#[cfg(not(feature = "bindings"))]
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let Options { check, include, version, fetch } = options;
    let mut cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "bindings", "--manifest-path"]);
    cargo.arg(crate::root().join("Cargo.toml")).args(["--", "bindings"]);
    cargo.args(check.then_some("--check")).args(fetch.then_some("--fetch"));
    if let Some(include) = include {
        cargo.arg("--include").arg(include);
    }
    if let Some(version) = version {
        cargo.arg("--version").arg(version);
    }
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the command failed".into()),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
