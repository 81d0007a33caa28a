//! An owner of registered memory needs `unsafe impl`: the compiler cannot check its promises.

struct Mine;

impl rdma::MemoryOwner for Mine {
    type Placement = rdma::Host;
    type Parts = ();

    fn into_parts(self) -> (std::ptr::NonNull<u8>, usize, ()) {
        (std::ptr::NonNull::dangling(), 0, ())
    }

    unsafe fn from_parts(_: std::ptr::NonNull<u8>, _: usize, (): ()) -> Self {
        Self
    }
}

fn main() {}
