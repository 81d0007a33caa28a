//! Developer commands: `cargo xtask COMMAND`.
//!
//! One module a command. `toolchain` (the oldest supported Rust, and its library for aarch64)
//! serves `msrv`, `aarch64`, `platforms` and `tsan`, `apt` fetches Debian packages, `flaky` decides
//! which failed cases of `vm` and `thirdparty` run once more, `system` has files and processes.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod aarch64;
mod apt;
mod bindings;
mod check;
mod containers;
mod counts;
mod flaky;
mod lint;
mod msrv;
mod nccl;
mod platforms;
mod ptx;
mod publish;
mod symbols;
mod system;
mod thirdparty;
mod toolchain;
mod tsan;
mod unsupported;
mod verbs;
mod vm;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developer commands of this workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run unit tests, and Debian's programs on the drop-in library, as programs of aarch64 in
    /// QEMU's user mode (on x86_64).
    Aarch64,
    /// Generate rdma-sys' bindings from rdma-core's headers, or check them.
    Bindings(bindings::Options),
    /// Check what changed since a commit: formatting, lint, clippy, unit tests.
    Check(check::Options),
    /// Run the commands of the Dockerfile, the compose files, the GitHub action, the workflow and
    /// the guide's pages in empty Debian systems (as root, by debootstrap), and the compose files
    /// in Docker's containers, too, if it is installed.
    Containers,
    /// Compare instruction counts of the data path with the table that is committed.
    Counts(counts::Options),
    /// Check dependencies (users, minimum Rust versions, C code) and prose (the length of lines,
    /// SAFETY comments that argue nothing).
    Lint,
    /// Check the workspace with the oldest supported Rust, of Debian's packages (on x86_64).
    Msrv,
    /// Run the network transport of NVIDIA's NCCL library on the software device, without a GPU
    /// (on x86_64).
    Nccl(nccl::Options),
    /// Check rdma, rdma-net and programs over them for macOS and for musl (on x86_64). What cannot
    /// be had, sources or a standard library, is skipped, with a line on standard output.
    Platforms,
    /// Assemble the kernels of rdma-cuda with NVIDIA's assembler.
    Ptx(ptx::Options),
    /// Pack the packages that are published, build each from its archive, try `soft-rdma` of its
    /// archive, and build the docs as docs.rs does.
    Publish,
    /// Compare the drop-in library's list of symbols with the bindings and with Debian's packages.
    Symbols(symbols::Options),
    /// Run Debian's RDMA programs, and programs over other Rust crates, on the software device.
    Thirdparty(thirdparty::Options),
    /// Run unit tests under the thread sanitizer, with a standard library that is built for it (on
    /// x86_64).
    Tsan,
    /// Make the guide's page for those who come from C, or check it.
    Verbs(verbs::Options),
    /// Run the device tests and the programs on a kernel's RDMA device in a virtual machine.
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Aarch64 => aarch64::run(),
        Command::Bindings(options) => bindings::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Containers => containers::run(),
        Command::Counts(options) => counts::run(&options),
        Command::Lint => lint::run(),
        Command::Msrv => msrv::run(),
        Command::Nccl(options) => nccl::run(&options),
        Command::Platforms => platforms::run(),
        Command::Ptx(options) => ptx::run(&options),
        Command::Publish => publish::run(),
        Command::Symbols(options) => symbols::run(&options),
        Command::Thirdparty(options) => thirdparty::run(&options),
        Command::Tsan => tsan::run(),
        Command::Verbs(options) => verbs::run(&options),
        Command::Vm(options) => vm::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The root folder of the workspace.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
