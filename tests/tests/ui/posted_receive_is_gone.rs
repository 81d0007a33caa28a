//! The buffer of a posted receive cannot be read before its message has arrived.

fn post(qp: &mut rdma::QueuePair<rdma::transport::Rc>, buffer: rdma::Buffer) -> u8 {
    let _posted = qp.post_recv(buffer, 0);
    buffer[0]
}

fn main() {}
