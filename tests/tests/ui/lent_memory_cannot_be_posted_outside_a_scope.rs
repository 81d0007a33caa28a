//! Posting borrowed memory needs a scope: a forgotten queue pair never stops using it.

fn post(qp: &mut rdma::QueuePair<rdma::transport::Rc>, buffer: &rdma::Buffer) {
    let _posted = qp.post_send(rdma::op::send(buffer.lend(..)));
}

fn main() {}
