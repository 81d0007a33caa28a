//! An id that was made here is no request, whatever it does.

use rdma::cm::{ConnOptions, Id};
use rdma::{InitializedQueuePair, Rc};

fn accept(listener: Id<Rc>, qp: InitializedQueuePair<Rc>) {
    let _accepted = listener.accept(qp, &ConnOptions::new());
}

fn main() {}
