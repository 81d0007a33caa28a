//! `cargo xtask msrv`: checks every target of the workspace with the oldest supported Rust.

use crate::system::cargo;
use crate::toolchain;

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let rustc = toolchain::rustc(&root.join("target/xtask/rust"))?;
    toolchain::check(&rustc, &root)?;
    let mut check = cargo(&root);
    check.args(["check", "--workspace", "--all-targets", "--locked"]);
    check.env("RUSTC", &rustc).env("CARGO_TARGET_DIR", root.join("target/msrv"));
    match check.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the workspace does not build with its rust-version".into()),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
