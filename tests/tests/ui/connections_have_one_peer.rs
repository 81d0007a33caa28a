//! A message on a connection goes to the peer; it takes no address.

fn post(mut qp: rdma::QueuePair<rdma::Rc>, buffer: rdma::Buffer, address: &rdma::AddressHandle) {
    qp.post_send(rdma::op::Send::new(buffer).to(address, 5, 6));
}

fn main() {}
