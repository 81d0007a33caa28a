//! A datagram without an address cannot be posted: not alone, in a batch, or by a half.

fn post(mut qp: rdma::QueuePair<rdma::transport::Ud>, buffers: [rdma::Buffer; 3]) {
    let [a, b, c] = buffers;
    qp.post_send(rdma::op::send(a));
    qp.batch().push(rdma::op::send(b));
    let (mut send, _recv) = qp.split_mut();
    send.post(rdma::op::send_imm(c, 7));
}

fn main() {}
