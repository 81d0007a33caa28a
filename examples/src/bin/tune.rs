//! Measures every algorithm of the collectives on this machine, and writes the table by which
//! `--algo auto` chooses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rdma_examples::tune::run()
}
