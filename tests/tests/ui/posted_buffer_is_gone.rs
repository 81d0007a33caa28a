//! A posted buffer belongs to the device until its completion: the program cannot write to it.

fn post(qp: &mut rdma::QueuePair<rdma::transport::Rc>, mut buffer: rdma::Buffer) {
    let _posted = qp.post_send(rdma::op::send(buffer));
    buffer[0] = 1;
}

fn main() {}
