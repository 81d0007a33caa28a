//! A datagram queue pair that is not ready cannot send.

fn send(mut qp: rdma::InitializedQueuePair<rdma::transport::Ud>, address: &rdma::AddressHandle) {
    qp.post_send(rdma::op::send_inline(b"early").to(address, 5, 6));
}

fn main() {}
