//! Only a connection request can be accepted, not an identifier that this process created.

use rdma::cm::{ConnOptions, Id};
use rdma::InitializedQueuePair;
use rdma::transport::Rc;

fn accept(listener: Id<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = listener.accept(qp, &ConnOptions::new());
}

fn main() {}
