//! Measures the all-gather on a hypercube over RDMA, checks every element of every result, and
//! prints nccl-tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::HyperCube,
        "All-gather over RDMA by exchanges over the dimensions of a hypercube",
    )
}
