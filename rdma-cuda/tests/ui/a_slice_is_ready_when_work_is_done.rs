use rdma_cuda::{GpuSlice, Pending, Ready};

fn send(_slice: Ready<GpuSlice<u8>>) {}

fn too_early(slice: GpuSlice<u8>, pending: Pending<Ready<GpuSlice<u8>>>) {
    send(slice);
    send(pending);
}

fn main() {}
