//! Measures the barrier over RDMA, and prints nccl-tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::Barrier,
        "Barrier over RDMA: no rank leaves before every rank has come",
    )
}
