//! Accepting takes the queue pair along: two requests cannot have the same.

use rdma::cm::{ConnOptions, ConnectRequest};
use rdma::{InitializedQueuePair, Rc};

fn shared(one: ConnectRequest<Rc>, other: ConnectRequest<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = one.accept(qp, &ConnOptions::new());
    let _again = other.accept(qp, &ConnOptions::new());
}

fn main() {}
