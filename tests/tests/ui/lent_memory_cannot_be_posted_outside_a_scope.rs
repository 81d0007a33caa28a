//! Posting borrowed memory needs a scope: a forgotten queue pair would not end the borrow's use.

fn post(qp: &mut rdma::QueuePair<rdma::Rc>, buffer: &rdma::Buffer) {
    let _posted = qp.post_send(rdma::op::Send::new(buffer.lend(..)));
}

fn main() {}
