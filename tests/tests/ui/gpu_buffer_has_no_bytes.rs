//! The processor cannot reach a GPU's memory.

fn look(buffer: &rdma::Buffer<rdma::Gpu>) -> u8 {
    buffer[0]
}

fn main() {}
