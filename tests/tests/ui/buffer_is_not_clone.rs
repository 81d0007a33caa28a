//! A buffer is exclusive.

fn copy(buffer: &rdma::Buffer) -> rdma::Buffer {
    buffer.clone()
}

fn main() {}
