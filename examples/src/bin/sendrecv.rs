//! Measures sends to the right neighbour and receives from the left one over RDMA, checks every
//! element of every result, and prints nccl-tests' table.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_collectives::Collective;

fn main() -> ExitCode {
    rdma_examples::collective_program::run(
        Collective::SendRecv,
        "Send and receive over RDMA: every rank sends to the next one and receives from the one before",
    )
}
