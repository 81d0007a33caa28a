//! `cargo xtask platforms`: checks programs over `rdma` and `rdma-net` for macOS, where they find
//! no device, and for Linux with musl.
//!
//! A check needs no linker and nothing of the target but its standard library. The library is built
//! by the oldest supported Rust, whose sources Debian packages. The programs are the examples of
//! the two crates, unchanged, in a package of their own, as a user has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::system::{at, cargo, list, make, write};
use crate::toolchain;

/// The targets.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-unknown-linux-musl"];
/// The folders of the programs.
const EXAMPLES: [&str; 2] = ["rdma/examples", "rdma-net/examples"];
/// The programs that use what only Linux has: epoll.
const OF_LINUX: [&str; 2] = ["event_loop", "gateway"];
/// The package of the programs: every feature of the two crates but `smol`, whose dependencies take
/// long to compile and whose code is like that of `tokio`, and what the examples use besides.
const MANIFEST: &str = r#"[package]
name = "platforms"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[profile.dev]
debug = false

[dependencies]
rdma = { package = "rdma-verbs", path = "../../../../rdma", features = ["tokio"] }
rdma-net = { path = "../../../../rdma-net", features = ["tokio", "bytes", "futures", "futures-io"] }
tokio = { version = "1", features = ["fs", "io-util", "macros", "rt-multi-thread", "signal", "sync", "time"] }
"#;

/// Runs the command. What cannot be had is a line of standard output, and no error.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let folder = root.join("target/xtask/rust");
    let rustc = toolchain::rustc(&folder)?;
    toolchain::check(&rustc, &root)?;
    if let Err(error) = toolchain::sources(&folder) {
        println!("the sources of Rust's library cannot be fetched: {error}");
        return Ok(());
    }
    let check = Check { rustc, root };
    let programs = check.package("programs", MANIFEST, &check.programs()?)?;
    if check.passes(&programs, &TARGETS)? {
        return Ok(());
    }
    // A target whose standard library does not build is left out.
    let empty = write(check.folder("empty")?.join("empty.rs"), "fn main() {}\n")?;
    let empty = check.package("empty", MANIFEST.split("rdma = ").next().unwrap_or(MANIFEST), &[empty])?;
    let mut targets = TARGETS.to_vec();
    for target in TARGETS {
        if !check.passes(&empty, &[target])? {
            println!("the standard library of {target} does not build here");
            targets.retain(|other| *other != target);
        }
    }
    if targets.is_empty() || targets.len() < TARGETS.len() && check.passes(&programs, &targets)? {
        return Ok(());
    }
    Err(format!("rdma and rdma-net, or programs over them, do not compile for {}", targets.join(", ")))
}

struct Check {
    rustc: PathBuf,
    root: PathBuf,
}

impl Check {
    /// The source files of the programs.
    fn programs(&self) -> Result<Vec<PathBuf>, String> {
        let mut programs = Vec::new();
        for folder in EXAMPLES {
            programs.extend(list(&self.root.join(folder), "rs")?);
        }
        programs.retain(|path| !OF_LINUX.contains(&name(path)));
        Ok(programs)
    }

    /// The folder of a package.
    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.root.join("target/xtask/platforms").join(name);
        make(&folder)?;
        Ok(folder)
    }

    /// Writes a package with the workspace's versions of its dependencies; returns its folder.
    fn package(&self, name: &str, manifest: &str, programs: &[PathBuf]) -> Result<PathBuf, String> {
        let folder = self.folder(name)?;
        let programs: String = programs.iter().map(|path| program(path)).collect();
        write(folder.join("Cargo.toml"), &format!("{manifest}\n{programs}"))?;
        let lock = self.root.join("Cargo.lock");
        fs::copy(&lock, folder.join("Cargo.lock")).map_err(at(&lock))?;
        Ok(folder)
    }

    /// Whether a package compiles for the targets, without warnings.
    fn passes(&self, package: &Path, targets: &[&str]) -> Result<bool, String> {
        let mut check = cargo(package);
        check.args(["check", "-Zbuild-std=std,panic_abort", "-Zbuild-std-features="]);
        check.args(targets.iter().flat_map(|target| ["--target", target]));
        // `build-std` is unstable. It compiles the library in full, which `no-codegen` shortens.
        check.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-D warnings -Zno-codegen");
        check.env("CARGO_TARGET_DIR", self.root.join("target/platforms"));
        succeeds(&mut check)
    }
}

fn succeeds(command: &mut Command) -> Result<bool, String> {
    command.status().map(|status| status.success()).map_err(|error| format!("cannot run cargo: {error}"))
}

/// The name of a program, after its file.
fn name(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

/// A program's lines in the manifest.
fn program(path: &Path) -> String {
    format!("[[bin]]\nname = \"{}\"\npath = \"{}\"\n\n", name(path), path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_left_out_exist() {
        let root = crate::root();
        let exists = |name: &str| EXAMPLES.iter().any(|folder| root.join(folder).join(format!("{name}.rs")).exists());
        assert!(OF_LINUX.iter().all(|name| exists(name)));
    }
}
