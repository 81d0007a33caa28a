//! The compiler cannot check that a descriptor names the owner's memory.

use std::os::fd::BorrowedFd;

fn register(pd: &rdma::ProtectionDomain, memory: rdma::Memory<rdma::Gpu>, fd: BorrowedFd<'_>) {
    let _ = pd.register_dmabuf(memory, fd, 0, rdma::RemoteAccess::READ);
}

fn main() {}
