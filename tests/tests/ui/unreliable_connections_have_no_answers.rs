//! Reads and atomic operations need an answer of the peer, which an unreliable connection lacks.

use rdma::op;

fn post(mut qp: rdma::QueuePair<rdma::transport::Uc>, buffers: [rdma::Buffer; 7], remote: rdma::RemoteSlice) {
    let [a, b, c, d, e, f, g] = buffers;
    qp.post_send(op::send(a));
    qp.post_send(op::send_imm(b, 7));
    qp.post_send(op::write(c, remote));
    qp.post_send(op::write_imm(d, remote, 7));
    qp.post_send(op::read(e, remote));
    qp.post_send(op::compare_swap(f, remote, 0, 1));
    qp.post_send(op::fetch_add(g, remote, 1));
}

fn main() {}
