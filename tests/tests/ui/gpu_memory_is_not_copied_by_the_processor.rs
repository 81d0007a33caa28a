//! The processor cannot access a region of GPU memory: it has neither copies nor atomic words.

fn copy(region: &rdma::ExposedRegion<rdma::Gpu>, bytes: &mut [u8]) {
    let _ = region.copy_out(0, bytes);
    let _ = region.copy_in(0, bytes);
}

fn count(slice: &rdma::ExposedSlice<rdma::Gpu>) {
    let _ = slice.load_u64(0, std::sync::atomic::Ordering::Acquire);
    let _ = slice.fetch_add_u64(0, 1);
}

fn main() {}
