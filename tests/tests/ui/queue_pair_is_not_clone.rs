//! A handle that destroys its object has a single owner, so it cannot be cloned.

fn copy(qp: &rdma::QueuePair<rdma::transport::Rc>) -> rdma::QueuePair<rdma::transport::Rc> {
    qp.clone()
}

fn main() {}
