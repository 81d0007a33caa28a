//! Measures the bandwidth between the memories of two GPUs: written directly, staged in host
//! memory, and between host memories; prints perftest's tables.
//!
//! Without arguments the program starts both processes. `--server` waits for a client on another
//! terminal or host; the server's address as argument makes a client.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use rdma_collectives::bootstrap::Roles;
use rdma_examples::gpu_bw::{self, Options, SideOptions};
use rdma_examples::pingpong::options::Sides;
use rdma_examples::{Failure, placement};

/// Bandwidth between the memories of two GPUs, by message size: direct, staged, and between host
/// memories.
///
/// RDMA_CUDA_PATH (direct, prefer, staged) and RDMA_CUDA_LEVEL (LOC, PIX, PXB, PHB, SYS) are
/// honoured: memory that they have staged is not measured directly.
#[derive(Clone, Parser)]
#[command(version, args_override_self = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(flatten)]
    sides: Sides,
    #[command(flatten)]
    local: SideOptions,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    rdma_examples::run("gpu_bw", run)
}

fn run(args: Args) -> Result<(), Failure> {
    args.options.validate()?;
    let gpu = args.local.gpu()?;
    let Some(place) = args.sides.place()? else { return Ok(()) };
    let terms = placement::terms("gpu_bw", &args.options, Roles::ServerAndClient, args.sides.timeout);
    placement::run(place, &terms, |group| gpu_bw::run(&gpu, &args.local, &args.options, group))
}
