//! A queue pair that is not connected cannot send.

fn send(mut qp: rdma::PreparedQueuePair<rdma::transport::Rc>, buffer: rdma::Buffer) {
    qp.post_send(rdma::op::send(buffer));
}

fn main() {}
