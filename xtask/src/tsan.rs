//! `cargo xtask tsan`: runs unit tests under the thread sanitizer.
//!
//! The sanitizer must see every access, so the standard library is built with it, too: by the
//! oldest supported Rust, whose sources Debian packages. Debian's compiler comes without the
//! sanitizer's runtime, so clang links the programs with its own.

use std::path::Path;

use crate::system::{cargo, succeeds};
use crate::toolchain;

/// The tests: arguments of `cargo test`.
const TESTS: [&str; 3] = ["-p rdma-mem --lib", "-p rdma-soft --lib", "-p rdma-verbs --lib"];
/// The linker, of whose version the runtime is (Debian's `libclang-rt-19-dev`).
const CLANG: &str = "clang-19";

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let folder = root.join("target/xtask/rust");
    let rustc = toolchain::rustc(&folder)?;
    toolchain::check(&rustc, &root)?;
    toolchain::sources(&folder)?;
    TESTS.iter().try_for_each(|arguments| test(&root, &rustc, arguments))
}

fn test(root: &Path, rustc: &Path, arguments: &str) -> Result<(), String> {
    let mut cargo = cargo(root);
    cargo.args(["test", "--locked", "-Zbuild-std", "--target", "x86_64-unknown-linux-gnu"]);
    cargo.args(arguments.split_whitespace());
    // The sanitizer and `build-std` are unstable.
    cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", root.join("target/tsan"));
    let flags = format!("-Zsanitizer=thread -Zexternal-clangrt -Clinker={CLANG} -Clink-arg=-fsanitize=thread");
    cargo.env("RUSTFLAGS", flags);
    succeeds(&mut cargo, |status| format!("cargo test {arguments}, under the thread sanitizer: {status}"))
}
