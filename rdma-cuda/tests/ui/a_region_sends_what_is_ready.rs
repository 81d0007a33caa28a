//! A NIC may send a slice once the work that writes it is done.

use rdma_cuda::{GpuRegion, GpuSlice};

fn send(qp: &mut rdma::QueuePair<rdma::transport::Rc>, region: &GpuRegion, slice: &GpuSlice<f32>) {
    let _ = qp.post_send(rdma::op::send(region.source(slice).unwrap()));
}

fn main() {}
