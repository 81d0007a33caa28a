use rdma_cuda::{Gpu, GpuBuffer, PinnedBuffer, Result};

fn references(gpu: &Gpu) -> Result<()> {
    GpuBuffer::<&u8>::new(gpu, 1)?;
    PinnedBuffer::<bool>::new(gpu, 1)?;
    Ok(())
}

fn main() {}
