//! Lent memory cannot be the memory of a future, which may be leaked.

fn start(qp: &mut rdma::aio::QueuePair<rdma::Rc>, buffer: &mut rdma::Buffer) {
    let _sent = qp.start(rdma::op::Send::new(buffer.lend(..)));
}

fn main() {}
