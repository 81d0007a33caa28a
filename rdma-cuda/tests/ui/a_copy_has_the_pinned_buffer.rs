use rdma_cuda::{GpuSlice, PinnedBuffer, Result, Stream};

fn read_during_a_copy(stream: &Stream, slice: &GpuSlice<u8>, pinned: PinnedBuffer<u8>) -> Result<u8> {
    let pending = stream.download_pinned(slice, pinned)?;
    let first = pinned[0];
    pending.wait()?;
    Ok(first)
}

fn main() {}
