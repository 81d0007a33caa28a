//! Lent memory cannot be the memory of a future, which may be leaked.

fn start(qp: &mut rdma::aio::QueuePair<rdma::transport::Rc>, buffer: &mut rdma::Buffer) {
    let _sent = qp.start(rdma::op::send(buffer.lend(..)));
}

fn main() {}
