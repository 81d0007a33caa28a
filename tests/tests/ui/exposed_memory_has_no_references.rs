//! Memory that peers may write to cannot be borrowed as bytes.

fn look(region: &rdma::ExposedRegion) -> &[u8] {
    &region[..]
}

fn main() {}
