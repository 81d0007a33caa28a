//! Memory that peers may write is never lent as bytes.

fn look(region: &rdma::ExposedRegion) -> &[u8] {
    &region[..]
}

fn main() {}
