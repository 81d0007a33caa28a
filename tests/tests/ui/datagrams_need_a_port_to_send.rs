//! A datagram queue pair that is not ready cannot send.

fn send(mut qp: rdma::InitializedQueuePair<rdma::Ud>, address: &rdma::AddressHandle) {
    qp.post_send(rdma::op::Send::inline(b"early").to(address, 5, 6));
}

fn main() {}
