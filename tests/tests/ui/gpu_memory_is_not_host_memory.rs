//! The placement of a region's memory is part of its type.

fn reduce(_: &rdma::ExposedRegion) {}

fn mix(region: &rdma::ExposedRegion<rdma::Gpu>) {
    reduce(region);
}

fn main() {}
