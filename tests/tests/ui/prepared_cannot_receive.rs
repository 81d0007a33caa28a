//! Receives cannot be posted before INIT.

fn receive(mut qp: rdma::PreparedQueuePair<rdma::transport::Rc>, buffer: rdma::Buffer) {
    qp.post_recv(buffer, 0);
}

fn main() {}
