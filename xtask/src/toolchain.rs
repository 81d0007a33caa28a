//! The oldest supported Rust, of Debian 13's packages: fetched and unpacked, never installed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::system::{at, output, read, remove, write};

/// The suite whose compiler has the workspace's `rust-version`.
const SUITE: &str = "trixie";
/// The compiler, its standard library, and the libraries that it loads. It runs with the suite's C
/// library; what it compiles is linked with this machine's.
const PACKAGES: &str = "rustc libstd-rust-dev libstd-rust-1.85 libllvm19 libc6 libgcc-s1 libstdc++6 libedit2 libffi8 \
    libxml2 libz3-4 libzstd1 zlib1g libbsd0 libtinfo6 libmd0 liblzma5";
/// Starts the unpacked compiler with the unpacked libraries. The script is bash's, because dash
/// drops variables such as `CARGO_BIN_EXE_soft-rdma`, whose names no shell can use.
const WRAPPER: &str = r#"#!/bin/bash
usr=${0%/*}/root/usr
libraries=$usr/lib/x86_64-linux-gnu
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" --argv0 rustc "$usr/bin/rustc" --sysroot "$usr" "$@"
"#;

/// Fetches the compiler into `folder`, an absolute path, unless it is there, and returns the path
/// of a program that takes the arguments of `rustc`.
pub(crate) fn rustc(folder: &Path) -> Result<PathBuf, String> {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the packages of Rust are fetched for x86_64 only".into());
    }
    let rustc = folder.join("rustc");
    if !rustc.exists() {
        fetch(folder)?;
        script(&rustc, WRAPPER)?;
    }
    Ok(rustc)
}

/// Fetches the standard library of a second architecture, whose target is `target`, into the
/// compiler's `folder`, unless it is there.
pub(crate) fn standard_library(folder: &Path, architecture: &str, target: &str) -> Result<(), String> {
    if folder.join("root/usr/lib/rustlib").join(target).exists() {
        return Ok(());
    }
    eprintln!("fetching Rust's library for {architecture} from Debian's {SUITE}");
    let apt = Apt::foreign(&folder.join("apt"), &[SUITE], architecture)?;
    apt.unpack([format!("libstd-rust-dev:{architecture}/{SUITE}")], &folder.join("root"))
}

/// Fetches the sources of the standard library into the compiler's `folder`, unless they are there.
pub(crate) fn sources(folder: &Path) -> Result<(), String> {
    if folder.join("root/usr/lib/rustlib/src/rust/library/Cargo.lock").exists() {
        return Ok(());
    }
    eprintln!("fetching the sources of Rust's library from Debian's {SUITE}");
    let apt = Apt::new(&folder.join("apt"), &[SUITE])?;
    apt.unpack([format!("rust-src/{SUITE}")], &folder.join("root"))
}

/// Writes an executable script, which appears complete or not at all.
pub(crate) fn script(path: &Path, text: &str) -> Result<(), String> {
    let new = write(path.with_extension("new"), text)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755)).map_err(at(&new))?;
    fs::rename(&new, path).map_err(at(path))
}

/// Checks that the compiler has the version that the workspace supports, for example 1.85.1 for
/// 1.85.
pub(crate) fn check(rustc: &Path, root: &Path) -> Result<(), String> {
    let oldest = rust_version(&read(&root.join("Cargo.toml"))?)?;
    let version = output(Command::new(rustc).arg("--version"))?;
    if version.split(' ').nth(1).is_some_and(|found| is_release_of(found, &oldest)) {
        return Ok(());
    }
    Err(format!("the workspace supports Rust {oldest}, but Debian's {SUITE} has {version}: name another suite"))
}

fn fetch(folder: &Path) -> Result<(), String> {
    eprintln!("fetching Rust from Debian's {SUITE}");
    let root = folder.join("root");
    remove(&root)?;
    let apt = Apt::new(&folder.join("apt"), &[SUITE])?;
    // The bare names would stand for the versions installed here.
    apt.unpack(PACKAGES.split_whitespace().map(|name| format!("{name}/{SUITE}")), &root)
}

/// The `rust-version` in the workspace's manifest.
fn rust_version(manifest: &str) -> Result<String, String> {
    let mut versions = manifest.lines().filter_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    versions.next().map(str::to_owned).ok_or_else(|| "Cargo.toml names no rust-version".into())
}

/// Whether `version`, such as 1.85.1, is a release of `minor`, such as 1.85.
fn is_release_of(version: &str, minor: &str) -> bool {
    version.strip_prefix(minor).is_some_and(|patch| patch.is_empty() || patch.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_belong_to_their_minor_version() {
        assert!(is_release_of("1.85.1", "1.85") && is_release_of("1.85", "1.85"));
        assert!(!is_release_of("1.851.0", "1.85") && !is_release_of("1.84.1", "1.85"));
    }

    #[test]
    fn the_manifest_names_a_version() {
        let manifest = read(&crate::root().join("Cargo.toml")).unwrap();
        assert!(rust_version(&manifest).unwrap().starts_with("1."));
    }
}
