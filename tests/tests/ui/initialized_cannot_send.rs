//! A queue pair that can receive cannot send yet.

fn send(mut qp: rdma::InitializedQueuePair<rdma::Rc>, buffer: rdma::Buffer) {
    qp.post_send(rdma::op::Send::new(buffer));
}

fn main() {}
