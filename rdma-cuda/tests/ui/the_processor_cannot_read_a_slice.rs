fn first(slice: &rdma_cuda::GpuSlice<u8>) -> &[u8] {
    &slice[..1]
}

fn all(slice: &rdma_cuda::GpuSlice<u8>) -> &[u8] {
    slice.as_ref()
}

fn main() {}
