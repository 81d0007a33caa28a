//! `cargo xtask ptx`: has NVIDIA's assembler check the PTX of rdma-cuda.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::system::{cargo, output, succeeds};

/// The package of the Python registry that has the assembler.
const PACKAGE: &str = "nvidia-cuda-nvcc-cu12==12.9.86";
/// The assembler in that package.
const ASSEMBLER: &str = "nvidia/cuda_nvcc/bin/ptxas";
/// The test that runs the assembler.
const TEST: &str = "reduce::ptx::tests::the_assembler_takes_the_module";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The assembler, in place of that of the Python registry's package nvidia-cuda-nvcc-cu12.
    #[arg(long, value_name = "FILE")]
    ptxas: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    let assembler = match &options.ptxas {
        Some(assembler) => assembler.clone(),
        None => fetch(&root.join("target/xtask/ptx"))?,
    };
    let mut test = cargo(&root);
    test.args(["test", "-p", "rdma-cuda", "--lib", "--", "--ignored", "--exact", TEST]).env("PTXAS", &assembler);
    succeeds(&mut test, |_| format!("{} does not take the PTX of rdma-cuda", assembler.display()))
}

/// The assembler in `folder`, into which it is fetched if it is not there.
fn fetch(folder: &Path) -> Result<PathBuf, String> {
    let assembler = folder.join(ASSEMBLER);
    if !assembler.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(folder).arg(PACKAGE);
        output(&mut pip)?;
    }
    Ok(assembler)
}
