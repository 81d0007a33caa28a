//! A buffer in GPU memory has no bytes to borrow: the processor cannot access that memory.

fn look(buffer: &rdma::Buffer<rdma::Gpu>) -> u8 {
    buffer[0]
}

fn main() {}
