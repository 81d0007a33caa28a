//! Inline data is copied by the processor, which cannot access GPU memory.

fn send(qp: &mut rdma::QueuePair<rdma::Rc>, slice: rdma::ExposedSlice<rdma::Gpu>) {
    let _ = qp.post_send(rdma::op::Send::new(slice).copied());
}

fn main() {}
