//! Runs a program, in any language, with the software device as its libibverbs and librdmacm.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use rdma_examples::soft_rdma::{self, Options};
use rdma_soft_dropin::{IBVERBS, RDMACM};

fn main() -> ExitCode {
    let library = soft_rdma::Library { bytes: rdma_soft_dropin_embed::library!(), names: [IBVERBS, RDMACM] };
    rdma_examples::run("soft-rdma", |options: Options| soft_rdma::run(&options, &library))
}
