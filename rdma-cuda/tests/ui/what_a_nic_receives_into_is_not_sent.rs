//! The sink of a receive or a read may have been written by work that is not done.

use rdma_cuda::{GpuRegion, GpuSlice};

fn send(qp: &mut rdma::QueuePair<rdma::transport::Rc>, region: &GpuRegion, slice: &GpuSlice<f32>) {
    let _ = qp.post_send(rdma::op::send(region.sink(slice).unwrap()));
}

fn main() {}
