//! A buffer has exclusive memory, so it cannot be cloned.

fn copy(buffer: &rdma::Buffer) -> rdma::Buffer {
    buffer.clone()
}

fn main() {}
