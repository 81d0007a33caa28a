//! A part of memory that peers may write to cannot be borrowed as bytes either.

fn look(slice: &rdma::ExposedSlice) -> u8 {
    slice[0]
}

fn main() {}
