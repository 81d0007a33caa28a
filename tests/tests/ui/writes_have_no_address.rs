//! Only sends take a datagram's address; writes do not.

fn to(buffer: rdma::Buffer, remote: rdma::RemoteSlice, address: &rdma::AddressHandle) {
    let _write = rdma::op::write(buffer, remote).to(address, 5, 6);
}

fn main() {}
