//! Measures the all-to-all, with even or uneven counts over RDMA, checks every element of every
//! result, and prints nccl-tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::AllToAll,
        "All-to-all over RDMA: every rank sends a block to every rank",
    )
}
