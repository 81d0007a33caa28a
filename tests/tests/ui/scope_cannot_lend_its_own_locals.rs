//! Memory that a scope lends to the device must outlive the scope.

fn lend(qp: &mut rdma::QueuePair<rdma::transport::Rc>, poller: &mut rdma::Poller, pd: &rdma::ProtectionDomain) {
    let _result = qp.scope(poller, std::time::Duration::from_secs(1), |scope| {
        let mut local = pd.allocate(64).unwrap();
        let _posted = scope.post_recv(local.lend_mut(..));
    });
}

fn main() {}
