//! A region must own its memory: a borrow could end while the device still writes to the memory.

fn register(pd: &rdma::ProtectionDomain, bytes: &mut [u8]) {
    let _buffer = pd.register(bytes);
}

fn main() {}
