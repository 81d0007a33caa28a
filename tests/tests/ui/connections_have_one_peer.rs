//! A message on a connection goes to the peer; it takes no address.

fn post(mut qp: rdma::QueuePair<rdma::transport::Rc>, buffer: rdma::Buffer, address: &rdma::AddressHandle) {
    qp.post_send(rdma::op::send(buffer).to(address, 5, 6));
}

fn main() {}
