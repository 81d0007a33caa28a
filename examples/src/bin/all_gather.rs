//! Measures the all-gather over RDMA, checks every element of every result, and prints nccl-tests'
//! table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::AllGather,
        "All-gather over RDMA: every rank ends with the blocks of all ranks",
    )
}
