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
    let manifest = read(&root.join("Cargo.toml"))?;
    let [tokio, bytes] = ["tokio", "bytes"].map(|name| oldest(&manifest, name));
    let (tokio, bytes) = (tokio?, bytes?);
    output(cargo(&copy).args(["update", "tokio", "--precise", &tokio]))?;
    output(cargo(&copy).args(["update", "bytes", "--precise", &bytes]))?;
    let fault = format!("rdma and rdma-net do not build with tokio {tokio} and bytes {bytes}");
    let features = "rdma-net/tokio,rdma-net/bytes,rdma-net/futures,rdma-verbs/bytes,rdma-verbs/tls";
    check(&copy, &["-p", "rdma-verbs", "-p", "rdma-net", "--features", features], &fault)
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

/// The oldest minor release of a crate that the workspace's manifest allows.
fn oldest(manifest: &str, name: &str) -> Result<String, String> {
    let start = format!("{name} = {{ version = \"");
    let line = manifest.lines().find_map(|line| line.strip_prefix(&start));
    let version = line.and_then(|line| line.split('"').next());
    version.map(|version| format!("{version}.0")).ok_or_else(|| format!("Cargo.toml names no version of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_the_oldest_releases() {
        let manifest = read(&crate::root().join("Cargo.toml")).unwrap();
        for name in ["tokio", "bytes"] {
            let version = oldest(&manifest, name).unwrap();
            assert!(version.starts_with("1.") && version.split('.').count() == 3, "{version}");
        }
        assert!(oldest(&manifest, "no_such_crate").is_err());
    }
}
