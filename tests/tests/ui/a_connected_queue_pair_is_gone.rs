//! Accepting a request consumes the queue pair: a second request cannot use the same one.

use rdma::cm::{ConnOptions, ConnectRequest};
use rdma::InitializedQueuePair;
use rdma::transport::Rc;

fn shared(one: ConnectRequest<Rc>, other: ConnectRequest<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = one.accept(qp, &ConnOptions::new());
    let _again = other.accept(qp, &ConnOptions::new());
}

fn main() {}
