//! A datagram queue pair does not accept writes, reads or atomic operations.

use rdma::op::{FetchAdd, Read, Write, WriteImm};

fn post(mut qp: rdma::QueuePair<rdma::Ud>, buffers: [rdma::Buffer; 4], remote: rdma::RemoteSlice) {
    let [a, b, c, d] = buffers;
    qp.post_send(Write::new(a, remote));
    qp.post_send(WriteImm::new(b, remote, 7));
    qp.post_send(Read::new(c, remote));
    qp.post_send(FetchAdd::new(d, remote, 1));
}

fn main() {}
