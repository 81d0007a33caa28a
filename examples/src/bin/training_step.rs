//! Makes the traffic of training steps on a grid of ranks, verifies it, and prints it beside the
//! planner's figures.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rdma_examples::training::run()
}
