//! Inline data, which posting copies, cannot be the destination of a read.

fn read(remote: rdma::RemoteSlice) {
    let _request = rdma::op::read_inline(&[0; 8], remote);
}

fn main() {}
