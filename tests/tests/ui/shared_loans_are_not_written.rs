//! Memory lent for reading only cannot be the destination of a receive.

fn receive(qp: &mut rdma::QueuePair<rdma::transport::Rc>, poller: &mut rdma::Poller, buffer: &rdma::Buffer) {
    let lent = buffer.lend(..);
    let _result = qp.scope(poller, std::time::Duration::from_secs(1), |scope| {
        let _posted = scope.post_recv(lent);
    });
}

fn main() {}
