//! A datagram queue pair does not accept writes, reads or atomic operations.

use rdma::op;

fn post(mut qp: rdma::QueuePair<rdma::transport::Ud>, buffers: [rdma::Buffer; 4], remote: rdma::RemoteSlice) {
    let [a, b, c, d] = buffers;
    qp.post_send(op::write(a, remote));
    qp.post_send(op::write_imm(b, remote, 7));
    qp.post_send(op::read(c, remote));
    qp.post_send(op::fetch_add(d, remote, 1));
}

fn main() {}
