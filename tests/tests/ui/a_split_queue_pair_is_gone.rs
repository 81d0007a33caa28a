//! A queue pair that was split is changed, and destroyed, only after its halves are reunited.

fn reset(qp: rdma::QueuePair<rdma::transport::Rc>, attr: &rdma::QpAttr) {
    let (send, _recv) = qp.into_split();
    let _same = qp.reset();
    let _half = send.modify(attr);
}

fn main() {}
