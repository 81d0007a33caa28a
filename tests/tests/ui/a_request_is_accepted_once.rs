//! Accepting a connection request consumes it.

use rdma::cm::{ConnOptions, ConnectRequest};
use rdma::InitializedQueuePair;
use rdma::transport::Rc;

fn twice(request: ConnectRequest<Rc>, one: InitializedQueuePair<Rc>, other: InitializedQueuePair<Rc>) {
    let options = ConnOptions::new();
    let _accepted = request.accept(one, &options);
    let _again = request.accept(other, &options);
}

fn then_rejected(request: ConnectRequest<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = request.accept(qp, &ConnOptions::new());
    let _rejected = request.reject(b"no");
}

fn main() {}
