//! Bytes that are copied when a request is posted cannot be the place that a read goes to.

fn read(remote: rdma::RemoteSlice) {
    let _request = rdma::op::Read::inline(&[0; 8], remote);
}

fn main() {}
