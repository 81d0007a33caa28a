use rdma_cuda::{GpuSlice, Landed};

fn launch(_slice: &GpuSlice<u8>) {}

fn too_early(slice: Landed<GpuSlice<u8>>) {
    launch(&slice);
    launch(slice.get());
}

fn main() {}
