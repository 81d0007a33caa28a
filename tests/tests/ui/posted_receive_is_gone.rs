//! A buffer that waits for a message cannot be read before it has come.

fn post(qp: &mut rdma::QueuePair<rdma::Rc>, buffer: rdma::Buffer) -> u8 {
    let _posted = qp.post_recv(buffer, 0);
    buffer[0]
}

fn main() {}
