//! Borrowed memory in flight needs a scope: a queue pair could be forgotten.

fn post(qp: &mut rdma::QueuePair<rdma::Rc>, buffer: &rdma::Buffer) {
    let _posted = qp.post_send(rdma::op::Send::new(buffer.lend(..)));
}

fn main() {}
