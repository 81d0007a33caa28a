//! A region owns its memory: a borrow could end while the device still writes.

fn register(pd: &rdma::ProtectionDomain, bytes: &mut [u8]) {
    let _buffer = pd.register(bytes);
}

fn main() {}
