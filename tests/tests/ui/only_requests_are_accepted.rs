//! An id that this process made is never a request.

use rdma::cm::{ConnOptions, Id};
use rdma::{InitializedQueuePair, Rc};

fn accept(listener: Id<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = listener.accept(qp, &ConnOptions::new());
}

fn main() {}
