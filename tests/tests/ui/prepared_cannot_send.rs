//! A queue pair that is not connected cannot send.

fn send(mut qp: rdma::PreparedQueuePair<rdma::Rc>, buffer: rdma::Buffer) {
    qp.post_send(rdma::op::Send::new(buffer));
}

fn main() {}
