//! A posted buffer belongs to the device until its completion: no code can write to it meanwhile.

fn post(qp: &mut rdma::QueuePair<rdma::Rc>, mut buffer: rdma::Buffer) {
    let _posted = qp.post_send(rdma::op::Send::new(buffer));
    buffer[0] = 1;
}

fn main() {}
