//! `cargo xtask msrv`: checks every target of the workspace with the oldest supported Rust, and the
//! crates that stand on tokio with its oldest supported release.

use std::fs;
use std::path::Path;

use crate::system::{at, cargo, make, output, read, remove, succeeds};
use crate::{lint, toolchain};

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let rustc = toolchain::rustc(&root.join("target/xtask/rust"))?;
    toolchain::check(&rustc, &root)?;
    let check = |folder: &Path, arguments: &[&str], fault: &str| {
        let mut check = cargo(folder);
        check.arg("check").args(arguments);
        check.env("RUSTC", &rustc).env("CARGO_TARGET_DIR", root.join("target/msrv"));
        succeeds(&mut check, |_| fault.to_owned())
    };
    let fault = "the workspace does not build with its rust-version";
    check(&root, &["--workspace", "--all-targets", "--locked"], fault)?;

    // A copy, because other programs use this folder's Cargo.lock meanwhile.
    let copy = root.join("target/xtask/oldest");
    copy_files(&root, &copy)?;
    let tokio = format!("{}.0", tokio_version(&read(&root.join("Cargo.toml"))?)?);
    output(cargo(&copy).args(["update", "tokio", "--precise", &tokio]))?;
    let fault = format!("rdma and rdma-net do not build with tokio {tokio}");
    check(&copy, &["-p", "rdma-verbs", "-p", "rdma-net", "--features", "rdma-net/tokio"], &fault)
}

/// Copies the files that git does not ignore.
fn copy_files(root: &Path, copy: &Path) -> Result<(), String> {
    remove(copy)?;
    for file in lint::files(root)? {
        let (from, to) = (root.join(&file), copy.join(&file));
        // A file that is deleted but not committed yet is listed too.
        if from.is_file() {
            to.parent().map_or(Ok(()), make)?;
            fs::copy(&from, &to).map_err(at(&from))?;
        }
    }
    Ok(())
}

/// The oldest minor release of tokio that the workspace's manifest allows.
fn tokio_version(manifest: &str) -> Result<String, String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("tokio = { version = \""));
    let version = line.and_then(|line| line.split('"').next());
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml names no version of tokio".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_tokio_s_version() {
        let manifest = read(&crate::root().join("Cargo.toml")).unwrap();
        assert!(tokio_version(&manifest).unwrap().starts_with("1."));
    }
}
