//! Reads and atomic operations need an answer of the peer, which an unreliable connection lacks.

use rdma::op::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};

fn post(mut qp: rdma::QueuePair<rdma::Uc>, buffers: [rdma::Buffer; 7], remote: rdma::RemoteSlice) {
    let [a, b, c, d, e, f, g] = buffers;
    qp.post_send(Send::new(a));
    qp.post_send(SendImm::new(b, 7));
    qp.post_send(Write::new(c, remote));
    qp.post_send(WriteImm::new(d, remote, 7));
    qp.post_send(Read::new(e, remote));
    qp.post_send(CompareSwap::new(f, remote, 0, 1));
    qp.post_send(FetchAdd::new(g, remote, 1));
}

fn main() {}
