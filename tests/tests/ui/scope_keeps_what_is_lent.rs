//! Memory lent to the device for writing cannot be read before the scope has ended.

fn lend(qp: &mut rdma::QueuePair<rdma::transport::Rc>, poller: &mut rdma::Poller, mut buffer: rdma::Buffer) {
    let lent = buffer.lend_mut(..);
    let _result = qp.scope(poller, std::time::Duration::from_secs(1), |scope| {
        let _posted = scope.post_recv(lent);
        println!("{}", buffer[0]);
    });
}

fn main() {}
