//! Nor is a part of it.

fn look(slice: &rdma::ExposedSlice) -> u8 {
    slice[0]
}

fn main() {}
