//! Measures the reduce-scatter over RDMA, checks every element of every result, and prints nccl-
//! tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::ReduceScatter,
        "Reduce-scatter over RDMA: every rank ends with its block of the reduction",
    )
}
