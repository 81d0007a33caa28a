//! A queue pair in INIT can post receives, but it cannot send yet.

fn send(mut qp: rdma::InitializedQueuePair<rdma::transport::Rc>, buffer: rdma::Buffer) {
    qp.post_send(rdma::op::send(buffer));
}

fn main() {}
