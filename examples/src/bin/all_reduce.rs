//! Reduces tensors over ranks with RDMA writes, checks every element of every result, and prints
//! nccl-tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::AllReduce,
        "All-reduce over RDMA: every rank ends with the reduction of what all contributed",
    )
}
