//! A buffer whose request is in flight belongs to the device until its future is ready.

fn start(qp: &mut rdma::aio::QueuePair<rdma::transport::Rc>, mut buffer: rdma::Buffer) {
    let _sent = qp.start(rdma::op::send(buffer));
    buffer[0] = 1;
}

fn main() {}
