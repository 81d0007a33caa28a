//! Shows the path between each GPU and each NIC of this machine, why it is taken, and what would
//! help.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rdma_cuda::Driver;
use rdma_examples::Failure;
use rdma_examples::gpu_doctor::Machine;

/// Shows which path transfers between the GPUs and the NICs of this machine take, and why.
///
/// RDMA_CUDA_PATH (direct, prefer, staged) and RDMA_CUDA_LEVEL (LOC, PIX, PXB, PHB, SYS) are
/// honoured, as every program of this package does.
#[derive(Parser)]
#[command(version, args_override_self = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {}

fn main() -> ExitCode {
    rdma_examples::run("gpu_doctor", run)
}

fn run(_: Args) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let driver = Driver::load();
    let machine = Machine::examine(driver.as_ref().ok().copied())?;
    machine.print(&mut out)?;
    driver.map_err(|error| Failure::new(error.to_string()))?;
    let conclusion = machine.conclusion()?;
    Ok(writeln!(out, "\n{conclusion}.")?)
}
