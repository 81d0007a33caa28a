//! Inline data is copied by the processor, which cannot access GPU memory.

fn send(qp: &mut rdma::QueuePair<rdma::transport::Rc>, slice: rdma::ExposedSlice<rdma::Gpu>) {
    let _ = qp.post_send(rdma::op::send(slice).copied());
}

fn main() {}
