//! A handle that destroys its object exists once.

fn copy(qp: &rdma::QueuePair<rdma::Rc>) -> rdma::QueuePair<rdma::Rc> {
    qp.clone()
}

fn main() {}
